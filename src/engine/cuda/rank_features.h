// SPDX-License-Identifier: Apache-2.0
// RankFeatures: a rank's vision tower and its part of its group's features. Engine thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/media/encode_share.h"
#include "model/batch.h"
#include "model/cuda/vision/cuda_vision_tower.h"

namespace sparrow {

class RankFeatures {
 public:
  // The configuration is borrowed. Without weights they are random.
  static Result<std::unique_ptr<RankFeatures>> create(const ModelConfig& config, const VisionWeights* weights,
                                                      EncodeShare share);

  // As in ModelRunner.
  void encode(std::span<const EncodeJob> jobs, cudaStream_t stream);
  // The rows of a batch that have features; those of others are kOthersFeature (ops/cuda/rows.h).
  std::vector<int32_t> rows_here(const Batch& batch) const;

  const __nv_bfloat16* data() const { return memory_.as<__nv_bfloat16>(); }
  int64_t num_tokens() const { return share_.num_rows(); }
  size_t weight_bytes() const { return tower_->weight_bytes(); }
  size_t workspace_bytes() const { return tower_->workspace_bytes() + memory_.bytes(); }

 private:
  explicit RankFeatures(EncodeShare share) : share_(std::move(share)) {}

  EncodeShare share_;
  std::unique_ptr<CudaVisionTower> tower_;
  DeviceBuffer memory_;  // [tokens, hidden size]
};

}  // namespace sparrow
