// SPDX-License-Identifier: Apache-2.0
// The norm before the router and the router in one launch, for one row: a CTA for each expert, which makes
// the norm for itself and keeps x in the registers that meet the router's. The CTA that comes last waits for
// the logits and selects.
#pragma once

#include "ops/cuda/router/router_few.cuh"
#include "ops/cuda/rows_device.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct NormRouteParams {
  NormedRow normed;
  __nv_bfloat16* x;  // [hidden] out
  const float* router;
  float* logits;  // [num_experts]: all 0 between calls
  Selection selection;
};

// Few threads, so that a CTA finds registers beside those of the kernel before and has its numbers of the
// router before that one is over.
template <int kVectors_, int kPerLane_>
struct NormRouteTraits {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kVectors = kVectors_, kPerLane = kPerLane_;
  static constexpr int kColumns = kThreads * kVector, kMaxHidden = kVectors * kColumns;
  static constexpr int kCtasPerSm = kVectors <= 3 && kPerLane <= 4 ? 3 : 1;
  struct Smem {
    Vector weight[kVectors][kThreads];  // of the norm
    double squares[32];
    float dots[kWarps], logits[32 * kPerLane];
  };
  static_assert(kWarps * kVectors <= 32);
};

// The row's norm; this thread has the vectors threadIdx.x + v * kThreads of it. The order of sums is that of
// cta_sum() with a thread for each vector. residual + delta and the norm go to memory where `stores`.
template <typename T>
__device__ __forceinline__ void norm_vectors(const NormRouteParams& p, bool stores, bool rehearsal,
                                             typename T::Smem& smem, Vector (&x)[T::kVectors]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, hidden = p.normed.hidden;
  const int first = threadIdx.x * kVector;
  const __nv_bfloat16 *const residual = rehearsal ? p.normed.weight : p.normed.residual,
                             *const delta = rehearsal ? p.normed.weight : p.normed.delta;
  Vector d[T::kVectors];
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v) {
    const int column = first + v * T::kColumns;
    x[v] = load_vector_if(column < hidden, residual + column);
    d[v] = load_vector_if(column < hidden, delta + column);
  }
  double squares[T::kVectors] = {};
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v) {
    const int column = first + v * T::kColumns;
    add_vector(x[v], d[v]);
    store_vector_if(stores && column < hidden, p.normed.residual_out + column, x[v]);
    add_squares(x[v], squares[v]);
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
#pragma unroll
    for (int v = 0; v < T::kVectors; ++v) squares[v] += __shfl_xor_sync(~0u, squares[v], mask);
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v)
    if (lane == 0) smem.squares[v * T::kWarps + warp] = squares[v];
  __syncthreads();
  double sum = lane < T::kVectors * T::kWarps ? smem.squares[lane] : 0.0;
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  const float scale = norm_scale(sum, hidden, p.normed.eps);
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v) {
    const int column = first + v * T::kColumns;
    scale_vector(x[v], scale, smem.weight[v][threadIdx.x]);
    store_vector_if(stores && column < hidden, p.x + column, x[v]);
  }
}

// Waits for the logits, takes them away and selects. Block-wide; a rehearsal waits for nothing.
template <typename T>
__device__ __forceinline__ void await_and_select(const NormRouteParams& p, typename T::Smem& smem,
                                                 bool rehearsal) {
  const Selection& s = p.selection;
  if (threadIdx.x < s.num_experts) {
    float* const from = p.logits + threadIdx.x;
    float logit;
    do logit = hopper::load_relaxed(from);
    while (__float_as_uint(logit) == 0 && !rehearsal);
    smem.logits[threadIdx.x] = logit;
    if (!rehearsal) *from = 0;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  float logit[T::kPerLane], bias[T::kPerLane];
  load_bias(s, bias);  // in the L1 since the rehearsal
#pragma unroll
  for (int i = 0; i < T::kPerLane; ++i) logit[i] = smem.logits[32 * i + threadIdx.x];
  select_experts(s, 0, logit, bias, rehearsal);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    norm_route_kernel(const __grid_constant__ NormRouteParams p) {
  __shared__ typename T::Smem smem;
  hopper::let_next_kernel_start();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int expert = blockIdx.x, last = gridDim.x - 1, hidden = p.normed.hidden;
  float router[T::kVectors][kVector];
#pragma unroll
  for (int v = 0; v < T::kVectors; ++v) {
    const int column = threadIdx.x * kVector + v * T::kColumns;
    smem.weight[v][threadIdx.x] = load_vector_if(column < hidden, p.normed.weight + column);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 four = {};
      if (column < hidden)
        four = __ldg(reinterpret_cast<const float4*>(p.router + int64_t{expert} * hidden + column) + half);
      router[v][4 * half] = four.x, router[v][4 * half + 1] = four.y;
      router[v][4 * half + 2] = four.z, router[v][4 * half + 3] = four.w;
    }
  }
  // All of this code runs once. So a CTA goes through it once before the wait, for the code.
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) hopper::wait_for_previous_kernel();
    Vector x[T::kVectors];
    norm_vectors<T>(p, expert == 0 && !rehearsal, rehearsal, smem, x);
    float2 dots = {};
#pragma unroll
    for (int v = 0; v < T::kVectors; ++v)
#pragma unroll
      for (int e = 0; e < kVector / 2; ++e) {
        const float2 f = __bfloat1622float2(x[v].pair[e]);
        dots.x = fmaf(f.x, router[v][2 * e], dots.x), dots.y = fmaf(f.y, router[v][2 * e + 1], dots.y);
      }
    float dot = dots.x + dots.y;
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) dot += __shfl_xor_sync(~0u, dot, mask);
    if (lane == 0) smem.dots[warp] = dot;
    __syncthreads();
    float logit = smem.dots[lane % T::kWarps];
#pragma unroll
    for (int mask = T::kWarps / 2; mask > 0; mask /= 2) logit += __shfl_xor_sync(~0u, logit, mask);
    if (threadIdx.x == 0 && !rehearsal) post(p.logits + expert, logit);
    // It waits for CTAs that have started before it.
    if (expert == last) await_and_select<T>(p, smem, rehearsal);
    __syncthreads();
  }
}

}  // namespace sparrow::ops::cuda
