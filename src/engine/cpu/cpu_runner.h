// SPDX-License-Identifier: Apache-2.0
// CpuRunner: the text model on this machine's cores, its cache in host memory. Engine thread only.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model_runner.h"

namespace sparrow {

class CpuRunner {
 public:
  static Result<std::unique_ptr<CpuRunner>> create(const ModelConfig& config, const Weights& weights,
                                                   const RunnerOptions& options);

  void forward(const Batch& batch, Capture* capture);
  std::vector<Draw> draw(std::span<const DrawRequest> draws);
  std::vector<std::optional<TokenLogprobs>> score(std::span<const PromptRow> rows) const;

  const Tensor& logits() const { return logits_; }
  KvCache& cache() { return cache_; }
  EngineInfo info() const;

 private:
  CpuRunner(const ModelConfig& config, const Weights& weights, const RunnerOptions& options, KvCache cache);
  std::span<const float> row(int64_t r) const;

  const ModelConfig& config_;
  TextModel model_;
  KvCache cache_;
  ThreadPool threads_;
  Scratch scratch_;
  Exec exec_;
  Sampler sampler_;
  std::vector<float> logits_memory_;
  Tensor logits_;  // [wanted rows, vocabulary] f32
};

}  // namespace sparrow
