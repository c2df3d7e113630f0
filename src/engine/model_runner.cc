// SPDX-License-Identifier: Apache-2.0
#include "engine/model_runner.h"

#include "engine/cpu/cpu_runner.h"
#include "engine/ranks/rank_group.h"

namespace sparrow {

Result<std::unique_ptr<ModelRunner>> create_runner(const ModelConfig& config, const Weights& weights,
                                                   const EngineOptions& options, const RankPeers& peers) {
  std::unique_ptr<ModelRunner> runner;
  if (options.device == Device::kCpu)
    runner = SPARROW_TRY(
        CpuRunner::create(config, weights, options.cache_tokens, options.cpu, options.grid, peers.comms));
  else
    runner = SPARROW_TRY(create_rank_group(
        config, weights,
        {.cache_tokens = options.cache_tokens,
         .max_context = options.max_model_tokens > 0 ? options.max_model_tokens : config.max_positions,
         .max_step_tokens = options.max_step_tokens,
         .max_step_sequences = options.max_step_sequences,
         .grid = options.grid,
         .gpu = options.gpu,
         .exchange = peers.exchange,
         .lost = peers.lost}));
  return runner;
}

}  // namespace sparrow
