// SPDX-License-Identifier: Apache-2.0
// ModelRunner: sequences -> batch -> forward -> logits -> ids, on one device. Owns the cache and whatever the
// device needs for a step. Engine thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/cpu/sampler.h"
#include "engine/engine_types.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/step_times.h"
#include "kv/block_pool.h"
#include "model/text_model.h"

namespace sparrow {

class CpuRunner;
class CudaRunner;

struct RunnerOptions {
  int64_t cache_tokens = 0;  // that the cache can hold, rounded up to blocks; 0: what fits (GPU only)
  Device device = Device::kCpu;

  int threads = ThreadPool::default_size();
  CpuIsa isa = ops::detect_cpu_isa();
  std::optional<uint64_t> block_order_seed;  // hand blocks out in this shuffled order

  // A GPU takes its workspace once, for the largest step.
  GpuOptions gpu;
  int64_t max_context = 0;  // tokens of the longest sequence; 0: the model's
  int max_batch_tokens = 8192;
  int max_sequences = 256;
};

// The next `num_tokens` uncomputed tokens of a sequence, and those of them (0 = first) whose logits are
// wanted.
struct SequenceSlice {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
  std::vector<int32_t> logit_offsets;
  int drawn_by = -1;  // the draw of the step before that gives the slice its one token; -1: it has its ids
};

class ModelRunner {
 public:
  // Config and weights are borrowed. Fails when the cache does not fit into memory, or the device cannot run
  // the model.
  static Result<std::unique_ptr<ModelRunner>> create(const ModelConfig& config, const Weights& weights,
                                                     const RunnerOptions& options);
  ~ModelRunner();

  // An empty sequence; it must not outlive the runner.
  Sequence new_sequence() { return {.ids = {}, .blocks = BlockTable(*pool_)}; }

  // Copies whole blocks, in this order.
  void copy_blocks(std::span<const BlockCopy> copies);

  // Runs the slices as one batch and counts their tokens as computed; a GPU may still be at it. Its logits
  // have one row for each wanted offset, in slice order, until the next call. Error: the cache is full.
  Status run(std::span<const SequenceSlice> slices, Capture* capture = nullptr);

  // Ids from the last run's logits. Draws of two steps may be under way; finish_draws() waits for the older.
  void start_draws(std::span<const DrawRequest> draws);
  std::vector<Draw> finish_draws();
  // Probabilities of the prompt's own ids, from the last run's logits (nullopt: the row holds no numbers).
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows);
  // The logits themselves, [wanted rows, vocabulary], on the host.
  Tensor logits();

  // Runs all tokens of a sequence in chunks of at most `chunk`; returns the logits of its last token.
  Result<Tensor> prefill(Sequence& sequence, int chunk);

  // GPUs only: random numbers in all of the cache, and the times of a step on it, whose blocks may be any.
  Result<StepTimes> profile(const Batch& batch, int repeats);
  void fill_cache(uint64_t seed);

  BlockPool& pool() { return *pool_; }
  const EngineInfo& info() const { return info_; }
  // The pages, where they are in host memory.
  const KvCache& cache() const;

 private:
  ModelRunner() = default;

  EngineInfo info_;
  std::unique_ptr<CpuRunner> cpu_;    // one of them
  std::unique_ptr<CudaRunner> cuda_;  // is there
  std::unique_ptr<BlockPool> pool_;
  Batch batch_;                          // kept for its memory
  std::deque<std::vector<Draw>> draws_;  // of the CPU, by age: those not asked for yet
  std::vector<int32_t> drawn_ids_;       // of the CPU's last step
};

}  // namespace sparrow
