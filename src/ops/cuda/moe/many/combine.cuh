// SPDX-License-Identifier: Apache-2.0
// The weighted sum of a row's experts, f32 by ascending expert id, the shared one last, rounded once.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/limits.h"
#include "ops/cuda/parts/part_sums.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct CombineParams {
  const __nv_bfloat16* parts = nullptr;   // [places, hidden]
  const __nv_bfloat16* shared = nullptr;  // [rows, hidden] of the shared expert
  const float* weights = nullptr;         // [rows, top_k], ascending by expert
  const int32_t* place_of = nullptr;      // [rows, top_k]; -1: not there
  __nv_bfloat16* out = nullptr;           // [rows, hidden]; not of one part
  int rows = 0, hidden = 0, top_k = 0;
  float scaling = 1;
};

struct Combine {
  static constexpr int kThreads = 256, kMaxTopK = kMaxExpertsPerToken;
};

__device__ __forceinline__ void add_scaled(float (&sum)[8], const __nv_bfloat16* source, float factor) {
  const uint4 v = *reinterpret_cast<const uint4*>(source);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += factor * __uint_as_float(words[i] << 16);
    sum[2 * i + 1] += factor * __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Where a row's experts left theirs, and what each counts. The routing is older than the second product,
// which starts only after the first one has waited for it.
__device__ __forceinline__ void load_experts(const CombineParams& p, int64_t row,
                                             int32_t (&places)[Combine::kMaxTopK],
                                             float (&factors)[Combine::kMaxTopK]) {
  if (threadIdx.x < p.top_k) {
    const int place = p.place_of[row * p.top_k + threadIdx.x];
    places[threadIdx.x] = place;
    factors[threadIdx.x] = place < 0 ? 0 : p.weights[row * p.top_k + threadIdx.x] * p.scaling;
  }
}

__device__ __forceinline__ void sum_experts(const CombineParams& p, int64_t row, int column,
                                            const int32_t (&places)[Combine::kMaxTopK],
                                            const float (&factors)[Combine::kMaxTopK], float (&sum)[8]) {
  const __nv_bfloat16* const shared = p.shared + row * p.hidden + column;
  for (int k = 0; k < p.top_k; ++k)
    // Instead of one that is not there, none of the shared expert.
    add_scaled(sum, places[k] < 0 ? shared : p.parts + int64_t{places[k]} * p.hidden + column, factors[k]);
  add_scaled(sum, shared, 1.0f);
}

// Leaves the sum of one part of the experts' channels, not rounded, added to the parts before it.
void launch_combine_part(const CombineParams& p, const PartPlace& place, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
