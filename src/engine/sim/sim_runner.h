// SPDX-License-Identifier: Apache-2.0
// SimRunner: no model at all. A step takes the time that a cost model gives, and ids come from a generator
// with a seed: everything around the model runs as it does on GPUs that are not there. Engine thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "config/config.h"
#include "engine/model_runner.h"
#include "engine/sim/sim_options.h"

namespace sparrow {

class SimRunner final : public ModelRunner {
 public:
  // The config is borrowed. cache_tokens 0: as many as the cost model's machine holds.
  static Result<std::unique_ptr<SimRunner>> create(const ModelConfig& config, const SimOptions& options,
                                                   int64_t cache_tokens);

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy>) override {}
  void run(const Batch& batch, Capture* capture = nullptr) override;
  void start_draws(std::span<const DrawRequest> draws) override;
  std::vector<Draw> finish_draws() override;
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override;
  Tensor logits() override { return {}; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Step {
    Clock::time_point end;
    std::vector<Draw> draws;
  };

  SimRunner(const ModelConfig& config, const SimOptions& options, int64_t num_blocks);
  std::optional<int32_t> draw(const SampleRow& row) const;

  const ModelConfig& config_;
  const SimOptions options_;
  EngineInfo info_;
  Clock::time_point free_at_{};  // when the machine has done all that it was given
  std::deque<Step> steps_;       // whose draws nobody has asked for yet
};

}  // namespace sparrow
