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
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda/device_info.h"
#include "device/cuda/stream.h"
#include "engine/cuda/device_sampler.h"
#include "engine/cuda/rank_features.h"
#include "engine/cuda/step_upload.h"
#include "engine/memory/gpu_memory.h"
#include "engine/ranks/rank_group.h"
#include "kv/cuda/cuda_kv_cache.h"
#include "model/cuda/cuda_text_model.h"
#include "model/cuda/device_weights.h"

namespace sparrow {

// When a part of a step began.
struct StepMark {
  StepPart part;
  int layer;
  Event event{Event::Timing::kOn};
};

class Rank {
 public:
  static Result<std::unique_ptr<Rank>> create(const ModelConfig& config, const Weights& weights,
                                              const RankOptions& options);
  ~Rank();

  EngineInfo info() const;
  // Another rank is gone: what this one computed since is worth nothing. Any thread.
  std::optional<Error> failure() const { return exchange_ ? exchange_->failure() : std::nullopt; }
  const Grid& grid() const { return options_.grid; }
  // Of a rank of several.
  const RankExchange& exchange() const { return *exchange_; }

  // As in ModelRunner.
  void copy_blocks(std::span<const BlockCopy> copies);
  void encode(std::span<const EncodeJob> jobs);
  void run(const Batch& batch, Capture* capture);
  void start_draws(std::span<const DrawRequest> draws);
  std::vector<Draw> finish_draws();
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows);
  Tensor logits();
  uint64_t replica_hash();

  // As in RankGroup.
  void fill_cache(uint64_t seed);
  StepTimes profile(const Batch& batch, int repeats);
  // A step that was run, once more, with the time noted between its parts; into a capture. And what the marks
  // say of it afterwards, without what other ranks did meanwhile.
  void launch_marked(const Batch& batch, std::vector<StepMark>& marks);
  StepTimes times_of(const std::vector<StepMark>& marks) const;
  // Runs it, too: distinct routed experts of each layer.
  std::vector<int> count_experts(const Batch& batch);
  // What this GPU is seen to reach.
  void measure_rates(StepTimes& times);

 private:
  Rank(const ModelConfig& config, const RankOptions& options, DeviceInfo device)
      : config_(config),
        options_(options),
        device_(std::move(device)),
        stream_(options.stream ? options.stream : std::make_shared<Stream>()) {}

  void enter() const;
  // Data-parallel groups that run together, and which of them this is. A rank that runs alone has all of a
  // batch.
  int num_groups() const { return options_.exchange ? options_.grid.dp : 1; }
  int group() const { return options_.exchange ? options_.grid.group() : 0; }
  RankStep step_of(const Batch& batch, bool graphs) const;
  void launch_marked(const DeviceBatch& step, std::vector<StepMark>& marks);
  std::vector<int> count_experts(const DeviceBatch& step);
  Status take_memory(const Weights& weights);
  bool sees(const Weights& weights) const;
  Status take_features(const VisionWeights* weights);
  // A batch on its way, with this rank's features.
  DeviceBatch upload(const Batch& batch, const RankStep& step);
  Result<std::unique_ptr<NcclRanks>> join_nccl() const;  // before anything is loaded: NCCL may be missing
  Status meet_others();                                  // and agrees with them on the products' algorithms
  // The smallest of all ranks'.
  Result<int64_t> agree_on(int64_t num_blocks) const;
  Result<int64_t> num_blocks(const KvCacheShape& one_block) const;
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
  DeviceLogits device_logits() const { return {model_->logits(), model_->logit_columns()}; }
  // Whether logits come together and ids are drawn here. A rank that runs alone draws from its own.
  bool draws() const { return options_.grid.leads_group() || !options_.exchange; }
  const int32_t* drawn_ids(const Batch& batch) const {
    if (batch.drawn_by.empty()) return nullptr;
    return draws() ? sampler_.ids() : model_->ids_of_first();
  }
  bool is_own(int64_t row) const {
    return row >= first_logit_ && row < first_logit_ + static_cast<int64_t>(wanted_rows_.size());
  }
  // Those of the rows of all groups' logits that are this one's, as its own; `own` is where they may lie.
  template <typename Row>
  std::span<const Row> own_rows(std::span<const Row> rows, std::vector<Row>& own) const;
  cudaStream_t stream() const { return stream_->get(); }

  const ModelConfig& config_;
  const RankOptions options_;
  const DeviceInfo device_;
  const std::shared_ptr<Stream> stream_;
  DeviceWeights weights_;
  std::unique_ptr<RankExchange> exchange_;  // of a rank of several; graphs, which use it, go first
  std::unique_ptr<CudaTextModel> model_;
  std::unique_ptr<RankFeatures> features_;  // where the model has vision
  std::string no_features_;                 // why there are none although it has
  std::vector<float> kv_scales_;            // of an fp8 cache, where the checkpoint has them
  std::optional<CudaKvCache> cache_;
  std::optional<StepUpload> upload_;
  DeviceSampler sampler_;
  GpuMemory planned_;
  std::deque<std::vector<Draw>> early_draws_;           // by step: what was drawn before its last window
  std::map<std::tuple<int, int, bool>, Graph> graphs_;  // by decodes, table columns, a shared index
  int max_columns_ = 0, max_logits_ = 0;

  // The last step.
  std::vector<int32_t> wanted_rows_;   // of the batch
  int64_t first_logit_ = 0;            // of this group, among those of all
  std::vector<int32_t> own_draw_;      // [draws of all groups] which of this group's it is, or -1
  bool replayed_ = false;              // its logits have a row for every row of the batch
  int64_t first_row_ = 0;              // of the wanted ones whose logits stand in the buffer
  std::vector<int64_t> hashed_slots_;  // of its first rows
  std::vector<float> host_logits_;
};

}  // namespace sparrow
