// SPDX-License-Identifier: Apache-2.0
// ModelRunner: sequences -> batch -> forward -> logits. Owns the cache, the threads and the scratch memory of
// one device. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "engine/sequence.h"
#include "kv/block_pool.h"
#include "kv/kv_cache.h"
#include "model/text_model.h"

namespace sparrow {

struct RunnerOptions {
  int64_t cache_tokens = 0;  // tokens the cache can hold, rounded up to blocks
  int threads = ThreadPool::default_size();
  CpuIsa isa = ops::detect_cpu_isa();
  std::optional<uint64_t> block_order_seed;  // hand blocks out in this shuffled order
};

// The next `num_tokens` uncomputed tokens of a sequence, and those of them (0 = first) whose logits are
// wanted.
struct SequenceSlice {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
  std::vector<int32_t> logit_offsets;
};

class ModelRunner {
 public:
  // Config and weights are borrowed. Fails when the cache does not fit into memory.
  static Result<std::unique_ptr<ModelRunner>> create(const ModelConfig& config, const Weights& weights,
                                                     const RunnerOptions& options);

  // An empty sequence; it must not outlive the runner.
  Sequence new_sequence() { return {.ids = {}, .blocks = BlockTable(pool_)}; }

  // Copies whole blocks, in this order.
  void copy_blocks(std::span<const BlockCopy> copies) { cache_.copy_blocks(copies); }

  // Runs the slices as one batch and counts their tokens as computed. The logits, [wanted rows, vocabulary]
  // in slice order, stay valid until the next call. Error: the cache is full.
  Result<Tensor> run(std::span<const SequenceSlice> slices, Capture* capture = nullptr);

  // Runs all tokens of a sequence in chunks of at most `chunk`; returns the logits of its last token.
  Result<Tensor> prefill(Sequence& sequence, int chunk);

  BlockPool& pool() { return pool_; }
  const KvCache& cache() const { return cache_; }
  int num_threads() const { return threads_.size(); }
  CpuIsa isa() const { return exec_.isa; }
  size_t cache_bytes() const { return cache_.shape().block_bytes() * cache_.shape().num_blocks; }

 private:
  ModelRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options, KvCache cache);

  const ModelConfig& config_;
  TextModel model_;
  KvCache cache_;
  BlockPool pool_;
  ThreadPool threads_;
  Scratch scratch_;
  Exec exec_;
  Batch batch_;  // kept for its memory
  std::vector<float> logits_;
};

}  // namespace sparrow
