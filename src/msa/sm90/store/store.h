// SPDX-License-Identifier: Apache-2.0
// The write path of a layer in one launch: each head of the projections is normalised and turned, q and index
// q go out in bf16, K, V and index keys into their blocks. Bound by bandwidth. Arithmetic is f32, sums of
// squares are in double, each value is rounded once, at the store: the bits are those of a scalar program
// with double sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "msa/layout/plan_layout.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

// cos and sin of a step's rows, once for all its layers: cos(float(position) * inv_freq) * factor, the angle
// in f32, its functions in double, so that positions of a million are as exact as the first.
struct RotaryParams {
  const int32_t* positions;           // [rows]
  float2* out;                        // [rows, half] cos and sin
  float inv_freq[kMaxRotaryDim / 2];  // [half]
  float factor;
  int rows, half;
};

struct StoreRows {
  const __nv_bfloat16* data;
  int64_t stride;  // elements from row to row, a multiple of 8
};

struct StoreParams {
  StoreRows q;        // [rows, query_heads, 128]
  StoreRows k, v;     // [rows, kv_heads, 128]
  StoreRows index_q;  // [rows, index_heads, 128]; nullptr: a dense layer
  StoreRows index_k;  // [rows, 128]
  const __nv_bfloat16 *q_norm, *k_norm, *index_q_norm, *index_k_norm;  // [128]
  const float2* rotary;                                                // [rows, half] from launch_rotary()
  const int64_t* slots;        // [rows] block * 128 + offset; negative: nothing is written
  const float* kv_scales;      // [kv_heads, 2 (K, V)] or nullptr; e4m3 pages hold x / scale
  __nv_bfloat16* q_out;        // [rows, query_heads, 128]; may be q.data where its rows are contiguous
  __nv_bfloat16* index_q_out;  // [rows, index_heads, 128]
  void* kv_pages;              // [blocks, kv_heads, 2 (K, V), 128, 128] kv_type
  void* index_pages;           // [blocks, 128, 128] index_type
  float eps;
  int rows, query_heads, kv_heads, index_heads;  // at most 4 of the last two
  int half;                                      // rotary channels / 2: 8, 16, 32 or 64
  hopper::Element kv_type, index_type;
};

cudaError_t launch_rotary(const RotaryParams& params, cudaStream_t stream);
cudaError_t launch_store(const StoreParams& params, cudaStream_t stream);

}  // namespace msa::sm90
