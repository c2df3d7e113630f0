// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rank_features.h"

#include "ops/cuda/rows.h"

namespace sparrow {

Result<std::unique_ptr<RankFeatures>> RankFeatures::create(const ModelConfig& config,
                                                           const VisionWeights& weights, int64_t tokens,
                                                           int rank, int ranks) {
  auto features = std::unique_ptr<RankFeatures>(new RankFeatures(tokens, rank, ranks));
  features->tower_ =
      SPARROW_TRY(CudaVisionTower::create(config, weights, tower_limits(*config.vision, tokens)));
  features->memory_ = SPARROW_TRY(DeviceBuffer::allocate(static_cast<size_t>(feature_bytes(config, tokens))));
  return features;
}

void RankFeatures::encode(std::span<const EncodeJob> jobs, cudaStream_t stream) {
  std::vector<TowerSegment> mine;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const int by = static_cast<int>(i % static_cast<size_t>(ranks_));
    for (const int32_t row : jobs[i].rows) encoded_by_[static_cast<size_t>(row)] = by;
    if (by == rank_) mine.push_back({jobs[i].grid, jobs[i].patches, jobs[i].rows});
  }
  tower_->encode(mine, memory_.as<__nv_bfloat16>(), stream);
}

std::vector<int32_t> RankFeatures::rows_here(const Batch& batch) const {
  std::vector<int32_t> rows = batch.feature_rows;
  for (int32_t& row : rows)
    if (row >= 0 && encoded_by_[static_cast<size_t>(row)] != rank_) row = ops::cuda::kOthersFeature;
  return rows;
}

}  // namespace sparrow
