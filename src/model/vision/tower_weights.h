// SPDX-License-Identifier: Apache-2.0
// Where the vision tower's weights lie on a GPU, as tower_layout.h says of its buffers.
#pragma once

#include <cstdint>
#include <vector>

#include "config/config.h"
#include "device/arena.h"
#include "model/vision/segments.h"

namespace sparrow {

struct TowerNorm {
  float *weight, *bias;  // [hidden]
};

template <typename Bf16>
struct TowerMatrix {
  Bf16* w;      // [rows, cols]
  float* bias;  // [rows]
  int rows, cols;
};

template <typename Bf16>
struct TowerLayer {
  TowerNorm norm1, norm2;
  // q, k and v below each other. Channels that rotary pairs, which are half a turned head apart in the
  // checkpoint, lie next to each other in q and k: scores stay the same.
  TowerMatrix<Bf16> qkv;
  TowerMatrix<Bf16> o, up, down;
};

template <typename Bf16>
struct TowerWeights {
  TowerMatrix<Bf16> patch;  // as bf16 terms; its bias is 0
  TowerNorm pre_norm;
  std::vector<TowerLayer<Bf16>> layers;
  TowerMatrix<Bf16> projector_up, projector_down, merger_up, merger_down;
};

// Both f32 operands of the patch embedding become two bf16 terms, of which the three largest products are
// taken: a row of pixels is h | l | h, one of the matrix h | h | l.
inline constexpr int kPatchTerms = 3;

template <typename Bf16>
TowerWeights<Bf16> lay_out_tower_weights(Arena& arena, const ModelConfig& config) {
  const VisionConfig& vision = *config.vision;
  const int hidden = vision.hidden_size, inner = vision.projector_hidden_size;
  const auto norm = [&] { return TowerNorm{arena.take<float>(hidden), arena.take<float>(hidden)}; };
  const auto matrix = [&](int rows, int64_t cols) {
    return TowerMatrix<Bf16>{arena.take<Bf16>(rows * cols), arena.take<float>(rows), rows,
                             static_cast<int>(cols)};
  };
  TowerWeights<Bf16> at{};
  at.patch = matrix(hidden, kPatchTerms * patch_numbers(vision));
  at.pre_norm = norm();
  for (int layer = 0; layer < vision.num_layers; ++layer)
    at.layers.push_back({.norm1 = norm(),
                         .norm2 = norm(),
                         .qkv = matrix(3 * hidden, hidden),
                         .o = matrix(hidden, hidden),
                         .up = matrix(vision.intermediate_size, hidden),
                         .down = matrix(hidden, vision.intermediate_size)});
  at.projector_up = matrix(inner, hidden);
  at.projector_down = matrix(config.hidden_size, inner);
  at.merger_up = matrix(inner, int64_t{config.hidden_size} * merged_patches(vision));
  at.merger_down = matrix(config.hidden_size, inner);
  return at;
}

}  // namespace sparrow
