// SPDX-License-Identifier: Apache-2.0
// RankGroup: the GPUs that run one model together, as one runner. A rank is one GPU with all that it owns;
// today a group has one. Programs built without CUDA have a create_rank_group() that says so.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/control_link.h"
#include "engine/model_runner.h"
#include "engine/ranks/step_times.h"

namespace sparrow {

class Stream;

// A GPU takes its memory once: for the largest step, and for the cache.
struct RankOptions {
  int64_t cache_tokens = 0;  // that the cache can hold, rounded up to blocks; 0: what fits
  int64_t max_context = 0;   // tokens of the longest sequence
  int max_step_tokens = 0, max_step_sequences = 0;
  Grid grid;  // the part of the model that this GPU holds
  GpuOptions gpu;
  // Of several ranks: takes this one's bytes and returns everybody's, by rank. All ranks call it equally
  // often. None: the rank runs alone, for measurements, and its sums lack the other ranks' parts.
  std::function<Result<std::vector<Bytes>>(std::span<const std::byte>)> exchange;
  // As in RankPeers.
  std::function<void(const Error&)> lost;
  // Of ranks in one process, which take turns on it.
  std::shared_ptr<Stream> stream;
  std::string nccl_library = "libnccl.so.2";  // where it is needed
};

class RankGroup : public ModelRunner {
 public:
  // Fills the cache with random numbers, and times a step on it. Its blocks may be any of the cache's.
  virtual void fill_cache(uint64_t seed) = 0;
  virtual StepTimes profile(const Batch& batch, int repeats) = 0;
};

// Config and weights are borrowed. Fails as create_runner() does.
Result<std::unique_ptr<RankGroup>> create_rank_group(const ModelConfig& config, const Weights& weights,
                                                     const RankOptions& options);

// All ranks of options.grid, one after the other on one GPU, as one runner: for tests and measurements. Over
// NCCL, which then must be a stand-in that moves between threads: all at once, each on a stream of its own.
Result<std::unique_ptr<RankGroup>> create_ranks_in_turn(const ModelConfig& config, const Weights& weights,
                                                        const RankOptions& options);

// Whether there is such a GPU, and the kernels run on it.
bool has_usable_gpu(int ordinal);

}  // namespace sparrow
