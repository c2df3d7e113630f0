// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/rank_features.h"

#include "ops/cuda/rows.h"

namespace sparrow {

Result<std::unique_ptr<RankFeatures>> RankFeatures::create(const ModelConfig& config,
                                                           const VisionWeights* weights, EncodeShare share) {
  const int64_t tokens = share.num_rows();
  auto features = std::unique_ptr<RankFeatures>(new RankFeatures(std::move(share)));
  const TowerLimits limits = tower_limits(*config.vision, tokens);
  features->tower_ = weights ? SPARROW_TRY(CudaVisionTower::create(config, *weights, limits))
                             : SPARROW_TRY(CudaVisionTower::random(config, limits));
  features->memory_ = SPARROW_TRY(DeviceBuffer::allocate(static_cast<size_t>(feature_bytes(config, tokens))));
  return features;
}

void RankFeatures::encode(std::span<const EncodeJob> jobs, cudaStream_t stream) {
  std::vector<TowerSegment> mine;
  for (const EncodeJob* job : share_.take(jobs)) mine.push_back({job->grid, job->patches, job->rows});
  tower_->encode(mine, memory_.as<__nv_bfloat16>(), stream);
}

std::vector<int32_t> RankFeatures::rows_here(const Batch& batch) const {
  std::vector<int32_t> rows = batch.feature_rows;
  for (int32_t& row : rows)
    if (row >= 0 && !share_.has(row)) row = ops::cuda::kOthersFeature;
  return rows;
}

}  // namespace sparrow
