// SPDX-License-Identifier: Apache-2.0
#include "model/vision/tower_layout.h"

#include "base/math.h"

namespace sparrow {

TowerLimits tower_limits(const VisionConfig& vision, int64_t feature_tokens) {
  return {.max_rows =
              round_up(feature_tokens * merged_patches(vision), int64_t{ops::cuda::kSegmentAlignment})};
}

int64_t feature_bytes(const ModelConfig& config, int64_t feature_tokens) {
  return feature_tokens * config.hidden_size * static_cast<int64_t>(sizeof(BFloat16));
}

int64_t tower_upload_bytes(const VisionConfig& vision, int64_t rows) {
  Arena upload;
  lay_out_tower_upload(upload, vision, rows);
  return static_cast<int64_t>(upload.used());
}

int64_t tower_pinned_bytes(const VisionConfig& vision, const TowerLimits& limits) {
  return tower_upload_bytes(vision, limits.max_rows) +
         limits.staged_rows() * patch_numbers(vision) * static_cast<int64_t>(sizeof(float));
}

Status check_tower_shapes(const ModelConfig& config) {
  const VisionConfig& vision = *config.vision;
  const auto refuse = [](const char* field, int value, std::string_view demand) {
    return Error{
        Errc::kUnsupported,
        strf("vision {} {}: the GPU kernels take {}; the CPU can run this tower", field, value, demand),
        field};
  };
  const int head_dim = vision.hidden_size / vision.num_heads;
  if (head_dim != ops::cuda::kTowerHeadDim)
    return refuse("num_attention_heads", vision.num_heads,
                  strf("heads of {} channels", ops::cuda::kTowerHeadDim));
  if (vision.hidden_size > ops::cuda::kMaxTowerHidden)
    return refuse("hidden_size", vision.hidden_size, strf("at most {}", ops::cuda::kMaxTowerHidden));
  if (vision.spatial_merge_size != 2) return refuse("spatial_merge_size", vision.spatial_merge_size, "2");
  const int64_t columns = kPatchTerms * patch_numbers(vision);
  if (columns % 8 != 0) return refuse("patch_size", vision.patch_size, "patches of multiples of 8 numbers");
  for (const auto& [field, value] : {std::pair{"intermediate_size", vision.intermediate_size},
                                     std::pair{"projector_hidden_size", vision.projector_hidden_size}})
    if (value % 8 != 0) return refuse(field, value, "multiples of 8");
  return Ok{};
}

}  // namespace sparrow
