// SPDX-License-Identifier: Apache-2.0
// The vision tower's operations on rows. Rounding points are those of ops/cpu; every function launches one
// kernel that may start while its predecessor drains.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/vision/limits.h"

namespace sparrow::ops::cuda {

// out = (x - mean) * rsqrt(variance + eps) * weight + bias of each row. out may be x.
struct LayerNormArgs {
  const __nv_bfloat16* x;      // [rows, hidden]
  const float *weight, *bias;  // [hidden]
  __nv_bfloat16* out;          // [rows, hidden]
  int rows, hidden;            // hidden: a multiple of 8, at most kMaxTowerHidden
  float eps;
};
void layer_norm(const LayerNormArgs& args, cudaStream_t stream);

// A row of n f32 numbers becomes three times n bf16 ones: h | l | h, where h is the number rounded and l what
// that has taken away. Of a matrix h | h | l: the product of both has the three largest of four products.
struct SplitTermsArgs {
  const float* x;      // [rows, numbers]
  __nv_bfloat16* out;  // [rows, 3 * numbers]
  int rows, numbers;
  bool is_matrix = false;
};
void split_terms(const SplitTermsArgs& args, cudaStream_t stream);

// cos and sin of each pair of channels of a head: those of the patch's place in time, height and width, one
// axis after the other; 1 and 0 for pairs that are not turned.
struct PatchRotaryArgs {
  const int32_t* places;  // [rows, 3]
  const float2* axis;     // [places of an axis, angles]
  float2* out;            // [rows, kTowerHeadDim / 2]
  int rows, angles;       // of an axis
};
void patch_rotary(const PatchRotaryArgs& args, cudaStream_t stream);

// to[rows[i]] = from[i]; a negative row goes nowhere.
struct ScatterRowsArgs {
  const __nv_bfloat16* from;  // [count, columns]
  const int32_t* rows;        // [count]
  __nv_bfloat16* to;          // [*, columns]
  int count, columns;         // columns: a multiple of 8
};
void scatter_rows(const ScatterRowsArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
