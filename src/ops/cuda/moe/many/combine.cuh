// SPDX-License-Identifier: Apache-2.0
// The weighted sum of a row's experts, f32 by ascending expert id, the shared one last, rounded once.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/limits.h"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct CombineParams {
  const __nv_bfloat16* parts = nullptr;   // [places, hidden]
  const __nv_bfloat16* shared = nullptr;  // [rows, hidden] of the shared expert
  const float* weights = nullptr;         // [rows, top_k], ascending by expert
  const int32_t* place_of = nullptr;      // [rows, top_k]; -1: not there
  __nv_bfloat16* out = nullptr;           // [rows, hidden]
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

static __global__ void __launch_bounds__(Combine::kThreads)
    combine_kernel(const __grid_constant__ CombineParams p) {
  __shared__ int32_t places[Combine::kMaxTopK];
  __shared__ float factors[Combine::kMaxTopK];
  const int64_t row = blockIdx.x;
  // The routing is older than the second product, which starts only after the first one has waited for it.
  if (threadIdx.x < p.top_k) {
    const int place = p.place_of[row * p.top_k + threadIdx.x];
    places[threadIdx.x] = place;
    factors[threadIdx.x] = place < 0 ? 0 : p.weights[row * p.top_k + threadIdx.x] * p.scaling;
  }
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  __syncthreads();
  for (int c = threadIdx.x * 8; c < p.hidden; c += Combine::kThreads * 8) {
    float sum[8] = {};
    const __nv_bfloat16* const shared = p.shared + row * p.hidden + c;
    for (int k = 0; k < p.top_k; ++k)
      // Instead of one that is not there, none of the shared expert.
      add_scaled(sum, places[k] < 0 ? shared : p.parts + int64_t{places[k]} * p.hidden + c, factors[k]);
    add_scaled(sum, shared, 1.0f);
    __nv_bfloat162 packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = __floats2bfloat162_rn(sum[2 * i], sum[2 * i + 1]);
    *reinterpret_cast<uint4*>(p.out + row * p.hidden + c) = *reinterpret_cast<const uint4*>(packed);
  }
}

}  // namespace sparrow::ops::cuda
