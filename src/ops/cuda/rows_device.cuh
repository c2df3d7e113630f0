// SPDX-License-Identifier: Apache-2.0
// What the kernels that hold rows of activations in registers share: eight columns to a thread, and the RMS
// norm's sum and scale, with the same bits in every kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "sm90/memory.cuh"

namespace sparrow::ops::cuda {

inline constexpr int kVector = 8;  // bf16 in 16 bytes

struct alignas(16) Vector {
  __nv_bfloat162 pair[kVector / 2];
};

__device__ __forceinline__ Vector load_vector(const __nv_bfloat16* p) {
  const uint4 bits = *reinterpret_cast<const uint4*>(p);
  Vector v;
  *reinterpret_cast<uint4*>(&v) = bits;
  return v;
}
__device__ __forceinline__ void store_vector(__nv_bfloat16* p, const Vector& v) {
  *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(&v);
}

// The same as one instruction with a predicate. A branch around it lets the compiler make two copies of all
// that follows, of which the one that is taken is the one that no rehearsal has been through.
__device__ __forceinline__ Vector load_vector_if(bool there, const __nv_bfloat16* p) {
  Vector v;
  *reinterpret_cast<uint4*>(&v) = hopper::load_global_if(there, p);
  return v;
}
__device__ __forceinline__ void store_vector_if(bool there, __nv_bfloat16* p, const Vector& v) {
  hopper::store_global_if(there, p, *reinterpret_cast<const uint4*>(&v));
}

__device__ __forceinline__ void add_vector(Vector& x, const Vector& delta) {
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    // Not the bf16 addition: it rounds once where the reference rounds to f32 first.
    const float2 a = __bfloat1622float2(x.pair[e]), b = __bfloat1622float2(delta.pair[e]);
    x.pair[e] = __floats2bfloat162_rn(a.x + b.x, a.y + b.y);
  }
}

__device__ __forceinline__ void add_squares(const Vector& x, double& sum) {
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    const float2 f = __bfloat1622float2(x.pair[e]);
    // The square of a bf16 number is exact in f32, unlike the sum of two.
    sum += double{f.x * f.x};
    sum += double{f.y * f.y};
  }
}

// Sum over the CTA, the same for all threads. Double, as the reference: it costs nothing beside the memory,
// and the result then does not depend on how a row is cut among threads.
__device__ __forceinline__ double cta_sum(double x, double (&partial)[32]) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  const int warps = blockDim.x / 32;
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < warps ? partial[threadIdx.x % 32] : 0.0;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// The same, and the largest of the CTA on the same way.
struct SumAndLargest {
  double sum;
  float largest;
};
__device__ __forceinline__ SumAndLargest cta_sum_and_largest(SumAndLargest x, SumAndLargest (&partial)[32]) {
  const auto reduce = [&] {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) {
      x.sum += __shfl_xor_sync(~0u, x.sum, mask);
      x.largest = fmaxf(x.largest, __shfl_xor_sync(~0u, x.largest, mask));
    }
  };
  reduce();
  const int warps = blockDim.x / 32;
  if (warps == 1) return x;
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
  __syncthreads();
  x = {0.0, 0.0f};
  if (threadIdx.x % 32 < warps) x = partial[threadIdx.x % 32];
  reduce();
  return x;
}

__device__ __forceinline__ float norm_scale(double sum_of_squares, int hidden, float eps) {
  const auto mean = static_cast<float>(sum_of_squares / hidden);
  return 1.0f / sqrtf(mean + eps);
}

__device__ __forceinline__ void scale_vector(Vector& x, float scale, const Vector& weight) {
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    const float2 f = __bfloat1622float2(x.pair[e]), w = __bfloat1622float2(weight.pair[e]);
    x.pair[e] = __floats2bfloat162_rn((f.x * scale) * (1.0f + w.x), (f.y * scale) * (1.0f + w.y));
  }
}

// What kernels that take a norm in know of it: their CTAs make it for themselves, and one of them stores the
// sum of residual and delta.
struct NormedRow {
  const __nv_bfloat16 *residual, *delta, *weight;  // [hidden]
  __nv_bfloat16* residual_out;                     // [hidden]; none of the other arrays
  int hidden;
  float eps;
};

}  // namespace sparrow::ops::cuda
