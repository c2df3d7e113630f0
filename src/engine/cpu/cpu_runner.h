// SPDX-License-Identifier: Apache-2.0
// CpuRunner: the text model on this machine's cores, its cache in host memory; one rank of a grid, or all
// there is. Every rank gets the same calls in the same order; logits and draws are those of group leaders,
// and the others have none to hand out. Engine thread only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model_runner.h"
#include "model/vision/tower.h"

namespace sparrow {

class CpuRunner final : public ModelRunner {
 public:
  // `cache_tokens` are rounded up to blocks. `weights` are those of all ranks.
  static Result<std::unique_ptr<CpuRunner>> create(const ModelConfig& config, const Weights& weights,
                                                   int64_t cache_tokens, const CpuOptions& options = {},
                                                   const Grid& grid = {}, RankComms comms = {});

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override;
  void encode(std::span<const EncodeJob> jobs) override;
  void run(const Batch& batch, Capture* capture) override;
  void start_draws(std::span<const DrawRequest> draws) override;
  std::vector<Draw> finish_draws() override;
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override;
  Tensor logits() override { return logits_; }
  std::optional<Error> failure() const override;
  uint64_t replica_hash() override { return replica_hash_; }
  double peer_wait_seconds() const override;

  const KvCache& cache() const { return cache_; }
  const Tensor& features() const { return features_; }
  int64_t num_encoded() const { return num_encoded_; }  // images and runs of clips, by this rank

 private:
  CpuRunner(const ModelConfig& config, const CpuOptions& options, const Grid& grid, RankComms comms,
            TextModel model, KvCache cache, const std::optional<VisionWeights>& vision);
  void copy_block(const BlockCopy& copy);
  Draw draw(const DrawRequest& request);
  // Whether a row of the batch's logits is of this group, and this rank has it.
  bool is_mine(int64_t r) const;
  std::span<const float> row(int64_t r) const;

  const ModelConfig& config_;
  const Grid grid_;
  const RankComms comms_;
  TextModel model_;
  KvCache cache_;
  std::optional<VisionTower> tower_;
  std::unique_ptr<std::byte[]> features_memory_;
  Tensor features_;  // [tokens that are kept, hidden size]
  ThreadPool threads_;
  Scratch scratch_;
  Exec exec_;
  EngineInfo info_;
  Sampler sampler_;
  std::vector<float> logits_memory_;
  Tensor logits_;                        // [logit rows, vocabulary] f32: those of this group
  int64_t first_logit_ = 0;              // of the batch's logit rows: the first that is this group's
  std::deque<std::vector<Draw>> draws_;  // by age: those not asked for yet
  std::vector<int32_t> drawn_ids_;       // of the last step, by draw; 0 where another group drew
  Batch own_;                            // this group's part of a batch, with the ids drawn for it
  uint64_t replica_hash_ = 0;
  int64_t num_encoded_ = 0;
};

}  // namespace sparrow
