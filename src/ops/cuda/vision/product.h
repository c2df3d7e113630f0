// SPDX-License-Identifier: Apache-2.0
// The vision tower's products: bias, GELU, residual and rotary are applied where sums are stored. A row's
// bits depend on that row alone: every sum has one order, whatever the number of rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/vision/limits.h"

namespace sparrow::ops::cuda {

enum class TowerEnd : uint8_t {
  kBias,
  kGelu,      // of the biased sum; the error function's
  kResidual,  // added to the biased sum
  kHeads,     // q, k and v for attend_segments(): the first two turned, all in tiles
};

// out = end(x w^T + bias), rounded once. Rows are dense; k and n are multiples of 8.
struct TowerProductArgs {
  const __nv_bfloat16* x;  // [rows, k]
  const __nv_bfloat16* w;  // [n, k]
  const float* bias;       // [n]
  __nv_bfloat16* out;      // [rows, n]; kHeads: see SegmentTiles
  int rows, n, k;
  TowerEnd end = TowerEnd::kBias;
  const __nv_bfloat16* residual = nullptr;  // [rows, n], may be out; kResidual
  // kHeads: cos and sin of each pair of a head's channels, which lie next to each other. n is 3 x heads x
  // kTowerHeadDim.
  const float2* rotary = nullptr;  // [rows, kTowerHeadDim / 2]
};
void tower_product(const TowerProductArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
