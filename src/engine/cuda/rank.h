// SPDX-License-Identifier: Apache-2.0
// Rank: one GPU with all that it owns: stream, weights, cache, workspace, the graphs that replay decode
// steps, the draws. A step is enqueued and its ids are the only thing read back. Every call makes the rank's
// GPU the calling thread's device first. Engine thread only.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "engine/cuda/device_sampler.h"
#include "engine/cuda/step_upload.h"
#include "engine/memory/gpu_memory.h"
#include "engine/ranks/rank_group.h"
#include "kv/cuda/cuda_kv_cache.h"
#include "model/cuda/cuda_text_model.h"
#include "model/cuda/device_weights.h"

namespace sparrow {

class Rank {
 public:
  static Result<std::unique_ptr<Rank>> create(const ModelConfig& config, const Weights& weights,
                                              const RankOptions& options);
  ~Rank();

  EngineInfo info() const;

  // As in ModelRunner.
  void copy_blocks(std::span<const BlockCopy> copies);
  void run(const Batch& batch, Capture* capture);
  void start_draws(std::span<const DrawRequest> draws);
  std::vector<Draw> finish_draws();
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows);
  Tensor logits();

  // As in RankGroup.
  void fill_cache(uint64_t seed);
  StepTimes profile(const Batch& batch, int repeats);

 private:
  Rank(const ModelConfig& config, const RankOptions& options, DeviceInfo device)
      : config_(config), options_(options), device_(std::move(device)) {}

  void enter() const;
  Status take_memory(const Weights& weights);
  Result<int64_t> num_blocks(const KvCacheShape& one_block) const;
  // Rounds a decode step up to a shape that has a graph.
  void round_up(StepShape& shape) const;
  // Its graph, captured when it is first needed.
  const Graph& graph_of(const StepShape& shape);
  // Rows of logits that the window in the buffer starts at; computes another where `row` is not in it.
  int64_t window_of(int64_t row);
  // Calls `use` with the rows in pieces that lie in one window, as rows of the buffer.
  template <typename Row, typename Use>
  void for_each_window(std::span<const Row> rows, const Use& use);
  int64_t buffer_row(int64_t row) const {
    return replayed_ ? wanted_rows_[static_cast<size_t>(row)] : row - first_row_;
  }
  DeviceLogits device_logits() const { return {model_->logits(), weights_.vocab_rows}; }
  const int32_t* drawn_ids(const Batch& batch) const {
    return batch.drawn_by.empty() ? nullptr : sampler_.ids();
  }

  const ModelConfig& config_;
  const RankOptions options_;
  const DeviceInfo device_;
  Stream stream_;
  DeviceWeights weights_;
  std::unique_ptr<CudaTextModel> model_;
  std::vector<float> kv_scales_;  // of an fp8 cache, where the checkpoint has them
  std::optional<CudaKvCache> cache_;
  std::optional<StepUpload> upload_;
  DeviceSampler sampler_;
  GpuMemory planned_;
  std::deque<std::vector<Draw>> early_draws_;    // by step: what was drawn before its last window
  std::map<std::pair<int, int>, Graph> graphs_;  // by decodes and table columns
  int max_columns_ = 0, max_logits_ = 0;

  // The last step.
  std::vector<int32_t> wanted_rows_;  // of the batch
  bool replayed_ = false;             // its logits have a row for every row of the batch
  int64_t first_row_ = 0;             // of the wanted ones whose logits stand in the buffer
  std::vector<float> host_logits_;
};

}  // namespace sparrow
