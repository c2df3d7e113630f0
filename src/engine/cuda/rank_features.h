// SPDX-License-Identifier: Apache-2.0
// RankFeatures: a rank's vision tower and the memory of features. Ranks of a group share the pictures of a
// call out among them. Of an embedding, which is the sum over the group, the rank that encoded it adds its
// features and the others zeros: nobody else needs them. Engine thread only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/media/feature_store.h"
#include "model/batch.h"
#include "model/cuda/vision/cuda_vision_tower.h"

namespace sparrow {

class RankFeatures {
 public:
  // The configuration is borrowed. `rank` of so many share the pictures; one that runs alone has them all.
  static Result<std::unique_ptr<RankFeatures>> create(const ModelConfig& config, const VisionWeights& weights,
                                                      int64_t tokens, int rank, int ranks);

  // As in ModelRunner.
  void encode(std::span<const EncodeJob> jobs, cudaStream_t stream);
  // The rows of a batch that have features; those of others are kOthersFeature (ops/cuda/rows.h).
  std::vector<int32_t> rows_here(const Batch& batch) const;

  const __nv_bfloat16* data() const { return memory_.as<__nv_bfloat16>(); }
  int64_t num_tokens() const { return static_cast<int64_t>(encoded_by_.size()); }
  size_t weight_bytes() const { return tower_->weight_bytes(); }
  size_t workspace_bytes() const { return tower_->workspace_bytes() + memory_.bytes(); }

 private:
  RankFeatures(int64_t tokens, int rank, int ranks)
      : rank_(rank), ranks_(ranks), encoded_by_(static_cast<size_t>(tokens)) {}

  const int rank_, ranks_;
  std::unique_ptr<CudaVisionTower> tower_;
  DeviceBuffer memory_;          // [tokens, hidden size]
  std::vector<int> encoded_by_;  // [tokens] the rank whose memory has it
};

}  // namespace sparrow
