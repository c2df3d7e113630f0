// SPDX-License-Identifier: Apache-2.0
// CpuRunner: the text model on this machine's cores, its cache in host memory. Engine thread only.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model_runner.h"

namespace sparrow {

class CpuRunner final : public ModelRunner {
 public:
  // `cache_tokens` are rounded up to blocks.
  static Result<std::unique_ptr<CpuRunner>> create(const ModelConfig& config, const Weights& weights,
                                                   int64_t cache_tokens, const CpuOptions& options = {});

  const EngineInfo& info() const override { return info_; }
  void copy_blocks(std::span<const BlockCopy> copies) override { cache_.copy_blocks(copies); }
  void run(const Batch& batch, Capture* capture) override;
  void start_draws(std::span<const DrawRequest> draws) override;
  std::vector<Draw> finish_draws() override;
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) override;
  Tensor logits() override { return logits_; }

  const KvCache& cache() const { return cache_; }

 private:
  CpuRunner(const ModelConfig& config, const Weights& weights, const CpuOptions& options, KvCache cache);
  Draw draw(const DrawRequest& request);
  std::span<const float> row(int64_t r) const;

  const ModelConfig& config_;
  TextModel model_;
  KvCache cache_;
  ThreadPool threads_;
  Scratch scratch_;
  Exec exec_;
  EngineInfo info_;
  Sampler sampler_;
  std::vector<float> logits_memory_;
  Tensor logits_;                        // [logit rows, vocabulary] f32
  std::deque<std::vector<Draw>> draws_;  // by age: those not asked for yet
  std::vector<int32_t> drawn_ids_;       // of the last step
  Batch fed_;                            // a batch with the ids that were drawn for it
};

}  // namespace sparrow
