// SPDX-License-Identifier: Apache-2.0
// Where the vision tower's weights and buffers lie on a GPU. CudaVisionTower lays them out in its memory, and
// a plan of the memory counts them with the same functions. Host arithmetic only: Bf16 is __nv_bfloat16 where
// there is CUDA, and BFloat16 where one only counts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/result.h"
#include "config/config.h"
#include "device/arena.h"
#include "model/vision/segments.h"
#include "model/vision/tower_weights.h"
#include "ops/cuda/vision/limits.h"
#include "ops/cuda/vision/segment_items.h"

namespace sparrow {

// The largest group of segments that goes through the tower together.
struct TowerLimits {
  int64_t max_rows = 0;  // patches, every segment rounded up to kSegmentAlignment

  // Rows on their way from the host at a time, and rows of what is wider than a layer.
  int64_t staged_rows() const { return std::min<int64_t>(max_rows, 4096); }
  int64_t wide_rows() const { return std::min<int64_t>(max_rows, 16384); }
};

// For every segment whose tokens can be kept.
TowerLimits tower_limits(const VisionConfig& vision, int64_t feature_tokens);
int64_t feature_bytes(const ModelConfig& config, int64_t feature_tokens);
// Page-locked memory of the host.
int64_t tower_pinned_bytes(const VisionConfig& vision, const TowerLimits& limits);

// What goes up with a group: a layout of its own for every number of rows.
struct TowerUpload {
  ops::cuda::SegmentItem* items;
  PatchPlace* places;   // [rows]
  int32_t* token_rows;  // [rows / patches of a token] of the feature memory; -1: a place that nobody fills
};

inline TowerUpload lay_out_tower_upload(Arena& arena, const VisionConfig& vision, int64_t rows) {
  const int64_t most_segments = rows / ops::cuda::kSegmentAlignment;
  return {
      arena.take<ops::cuda::SegmentItem>(ops::cuda::max_segment_items(rows, most_segments, vision.num_heads)),
      arena.take<PatchPlace>(rows), arena.take<int32_t>(rows / merged_patches(vision))};
}
int64_t tower_upload_bytes(const VisionConfig& vision, int64_t rows);

// cos and sin of one angle.
struct Turn {
  float cos, sin;
};

template <typename Bf16>
struct TowerBuffers {
  std::byte* upload;        // a TowerUpload
  Turn* axis;               // [places of an axis, angles of an axis]
  Turn* rotary;             // [rows, kTowerHeadDim / 2]
  float* staged;            // [staged rows, numbers of a patch]
  Bf16* terms;              // [staged rows, columns of the patch matrix]
  Bf16 *residual, *normed;  // [rows, hidden]; what attention gives takes the norm's place
  Bf16* heads;              // q, k and v of all rows
  Bf16 *inner, *projected;  // [wide rows, the widest], [wide rows, the text model's hidden size]
  Bf16* tokens;             // [wide rows / patches of a token, the text model's hidden size]
};

template <typename Bf16>
TowerBuffers<Bf16> lay_out_tower(Arena& arena, const ModelConfig& config, const TowerLimits& limits) {
  const VisionConfig& vision = *config.vision;
  const int64_t rows = limits.max_rows, wide = limits.wide_rows(), staged = limits.staged_rows();
  const int64_t hidden = vision.hidden_size, numbers = patch_numbers(vision);
  TowerBuffers<Bf16> at{};
  arena.begin("images: metadata");
  at.upload = arena.take<std::byte>(tower_upload_bytes(vision, rows));
  at.axis = arena.take<Turn>(rows * axis_angles(vision));
  at.rotary = arena.take<Turn>(rows * ops::cuda::kTowerHeadDim / 2);
  arena.begin("images: patches");
  at.staged = arena.take<float>(staged * numbers);
  at.terms = arena.take<Bf16>(staged * kPatchTerms * numbers);
  arena.begin("images: layers");
  at.residual = arena.take<Bf16>(rows * hidden);
  at.normed = arena.take<Bf16>(rows * hidden);
  at.heads = arena.take<Bf16>(rows * hidden * 3);
  arena.begin("images: wide rows");
  at.inner = arena.take<Bf16>(wide * std::max(vision.intermediate_size, vision.projector_hidden_size));
  at.projected = arena.take<Bf16>(wide * config.hidden_size);
  at.tokens = arena.take<Bf16>(wide / merged_patches(vision) * config.hidden_size);
  return at;
}

// Error: the kernels do not take this tower; the CPU does.
Status check_tower_shapes(const ModelConfig& config);

}  // namespace sparrow
