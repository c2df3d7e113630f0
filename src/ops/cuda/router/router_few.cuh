// SPDX-License-Identifier: Apache-2.0
// The router of few rows in one launch: logits on mma.sync with f32 weights as three bf16 terms, summed in an
// order that does not depend on the number of rows, and the selection in the CTAs that come last.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/router/router_select.cuh"
#include "ops/cuda/rows.h"
#include "ops/gpu_workspace.h"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

// The three terms of a pair of numbers: each takes the next 8 bits.
__device__ __forceinline__ void split_pair(float x, float y, uint32_t (&terms)[3]) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const __nv_bfloat162 term = __floats2bfloat162_rn(x, y);
    terms[i] = *reinterpret_cast<const uint32_t*>(&term);
    const float2 f = __bfloat1622float2(term);
    x -= f.x, y -= f.y;
  }
}

// A CTA makes 64 rows by 64 experts over a few chunks of 32 columns: a warp for 8 experts. The columns of a
// chunk are dealt to a product's k in the order that lets every thread load 16 bytes at a time. The 8 CTAs of
// a cluster add up their columns, each for 8 of the rows. The clusters' parts meet in global memory, where
// the last cluster of a group of rows waits for them, adds them up and selects.
struct FewTraits {
  static constexpr int kCluster = 8, kWarps = 8, kThreads = 32 * kWarps;
  static constexpr int kRows = 64, kExperts = 8 * kWarps, kChunk = 32;
  static constexpr int kChunks = 3;  // of a CTA
  static constexpr int kRowsOfCta = kRows / kCluster;
  static constexpr int kPad = 8;  // spreads a fragment's rows over the banks
  static_assert(kChunk * kChunks * kCluster == kRouterPartColumns);
};

struct FewParams {
  const __nv_bfloat16* x;
  const float* router;
  float* logits;  // [num_parts, rows, num_experts]: all 0 between calls
  Selection selection;
  int hidden;
};

// A part's logit is its own flag: 0 says that it is not there yet. A logit of 0 is written as -0.
__device__ __forceinline__ void post(float* to, float logit) {
  hopper::store_relaxed(to, logit == 0 ? -0.0f : logit);
}

// Waits for all parts of a row, takes them away and adds them up in their order.
template <int kPerLane>
__device__ void await_logits(const FewParams& p, int num_parts, int row, float (&logit)[kPerLane]) {
  constexpr int kBatch = 8;  // parts on their way at the same time
  const int lane = threadIdx.x % 32, num_experts = p.selection.num_experts;
  const int64_t stride = int64_t{p.selection.rows} * num_experts;
  for (int base = 0; base < num_parts; base += kBatch) {
    float parts[kBatch][kPerLane];
    bool ready;
    do {
      ready = true;
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
          parts[b][i] = 0;
          if (base + b >= num_parts || 32 * i + lane >= num_experts) continue;
          parts[b][i] = hopper::load_relaxed(p.logits + (base + b) * stride + int64_t{row} * num_experts +
                                             32 * i + lane);
        }
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
          if (base + b < num_parts && 32 * i + lane < num_experts)
            ready = ready && __float_as_uint(parts[b][i]) != 0;
    } while (!__all_sync(~0u, ready));
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        logit[i] += parts[b][i];
        if (base + b < num_parts && 32 * i + lane < num_experts)
          p.logits[(base + b) * stride + int64_t{row} * num_experts + 32 * i + lane] = 0;
      }
  }
}

// 8 experts in a warp's chunks of columns.
using FewWeights = float4[FewTraits::kChunks][2];

__device__ __forceinline__ void few_weights(const FewParams& p, int first_expert, int first_chunk,
                                            FewWeights& weights) {
  using T = FewTraits;
  const int lane = threadIdx.x % 32, expert = first_expert + lane / 4;
  const float* const router = p.router + int64_t{expert} * p.hidden + lane % 4 * 8;
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c) {
    weights[c][0] = weights[c][1] = {};
    if (first_chunk + c >= p.hidden / T::kChunk || expert >= p.selection.num_experts) continue;
    const auto* const from = reinterpret_cast<const float4*>(router + (first_chunk + c) * T::kChunk);
    weights[c][0] = __ldg(from), weights[c][1] = __ldg(from + 1);
  }
}

// The same as [chunk][pair of columns][term].
using FewTerms = uint32_t[FewTraits::kChunks][4][3];

__device__ __forceinline__ void few_terms(const FewWeights& weights, FewTerms& terms) {
#pragma unroll
  for (int c = 0; c < FewTraits::kChunks; ++c) {
    split_pair(weights[c][0].x, weights[c][0].y, terms[c][0]);
    split_pair(weights[c][0].z, weights[c][0].w, terms[c][1]);
    split_pair(weights[c][1].x, weights[c][1].y, terms[c][2]);
    split_pair(weights[c][1].z, weights[c][1].w, terms[c][3]);
  }
}

// x of 16 rows a tile in the same chunks: [chunk][tile][half of its rows].
template <int kTiles>
using FewRows = uint4[FewTraits::kChunks][kTiles][2];

template <int kTiles>
__device__ __forceinline__ void few_rows(const FewParams& p, int first_row, int first_chunk, int rows,
                                         FewRows<kTiles>& x) {
  using T = FewTraits;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int c = 0; c < T::kChunks; ++c)
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const int chunk = first_chunk + c, row = first_row + 8 * i + lane / 4;
      x[c][i / 2][i % 2] = {};
      if (chunk < p.hidden / T::kChunk && row < rows)
        x[c][i / 2][i % 2] =
            *reinterpret_cast<const uint4*>(p.x + int64_t{row} * p.hidden + chunk * T::kChunk + lane % 4 * 8);
    }
}

template <int kTiles>
__device__ __forceinline__ void few_products(const FewRows<kTiles>& x, const FewTerms& terms,
                                             float (&acc)[kTiles][4]) {
#pragma unroll
  for (int c = 0; c < FewTraits::kChunks; ++c)
#pragma unroll
    for (int term = 2; term >= 0; --term)  // small terms first: the tensor cores truncate sums
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 &r0 = x[c][t][0], &r1 = x[c][t][1];
        hopper::mma_16x8x16(acc[t], {r0.x, r1.x, r0.y, r1.y}, terms[c][0][term], terms[c][1][term]);
        hopper::mma_16x8x16(acc[t], {r0.z, r1.z, r0.w, r1.w}, terms[c][2][term], terms[c][3][term]);
      }
}

// Up to 16 rows: the warps of a CTA stand for the CTAs of a cluster and take 8 experts, so that nobody waits
// for a cluster. The same sums in the same order. The last CTAs select, each one row.
template <int kPerLane_>
struct FewestTraits {
  static constexpr int kRows = 16, kExperts = 8, kWarps = FewTraits::kCluster, kThreads = 32 * kWarps;
  static constexpr int kPad = 2, kPerLane = kPerLane_, kMaxExperts = 32 * kPerLane;
  static constexpr int kMaxParts = (kMaxHidden + 767) / 768;
  static_assert(router_parts(kMaxHidden) == kMaxParts);
  union Smem {
    float sums[kWarps][kRows][kExperts + kPad];
    struct {
      float parts[kMaxParts][kMaxExperts], logits[kMaxExperts];
    };
  };
};

// Waits for the parts of a row, takes them away, adds them up in their order and selects. Block-wide. A
// rehearsal waits for nothing, makes nothing of what it reads and writes nothing.
template <typename T>
__device__ __forceinline__ void fewest_select(const FewParams& p, typename T::Smem& smem, int num_parts,
                                              int row, bool rehearsal) {
  constexpr int kBatch = 4;
  const Selection& s = p.selection;
  const int count = num_parts * s.num_experts, thread = threadIdx.x;
  __syncthreads();
#pragma unroll 1
  for (int base = thread; base < count; base += kBatch * T::kThreads) {
    float values[kBatch];
    bool ready;
    const auto place = [&](int i) {
      const int part = i / s.num_experts;
      return p.logits + (int64_t{part} * s.rows + row) * s.num_experts + (i - part * s.num_experts);
    };
    do {
      ready = true;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const int i = base + b * T::kThreads;
        values[b] = i < count ? hopper::load_relaxed(place(i)) : -0.0f;
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) ready = ready && __float_as_uint(values[b]) != 0;
    } while (!ready && !rehearsal);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = base + b * T::kThreads, part = i / s.num_experts;
      if (i >= count) continue;
      smem.parts[part][i - part * s.num_experts] = values[b];
      if (!rehearsal) *place(i) = 0;
    }
  }
  __syncthreads();
  if (thread < s.num_experts) {
    float sum = 0;
#pragma unroll 1
    for (int part = 0; part < num_parts; ++part) sum += smem.parts[part][thread];
    smem.logits[thread] = sum;
  }
  __syncthreads();
  if (thread >= 32) return;
  float logit[T::kPerLane], bias[T::kPerLane];
  load_bias(s, bias);
#pragma unroll
  for (int i = 0; i < T::kPerLane; ++i) logit[i] = smem.logits[32 * i + thread];
  select_experts(s, row, logit, bias, rehearsal);
}

// The code of a step's kernels is larger than the instruction caches, and few instructions of this one run
// twice. So each CTA goes through its work once for the code alone, while the kernel before runs.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kPerLane <= 4 ? 3 : 2)
    fewest_kernel(const __grid_constant__ FewParams p) {
  __shared__ typename T::Smem smem;
  hopper::let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, part = blockIdx.x;
  const int first_expert = blockIdx.y * T::kExperts;
  const int first_chunk = (part * T::kWarps + warp) * FewTraits::kChunks;
  const Selection& s = p.selection;
  const int cta = blockIdx.y * gridDim.x + part, last = gridDim.x * gridDim.y - 1;
  FewWeights weights;
  few_weights(p, first_expert, first_chunk, weights);
  FewTerms terms;
  few_terms(weights, terms);
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) hopper::wait_for_previous_kernel();
    FewRows<1> x;
    few_rows<1>(p, 0, first_chunk, rehearsal ? 0 : s.rows, x);
    float acc[1][4] = {};
    few_products<1>(x, terms, acc);
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float2*>(&smem.sums[warp][8 * h + lane / 4][lane % 4 * 2]) = {acc[0][2 * h],
                                                                                      acc[0][2 * h + 1]};
    __syncthreads();
    const int my_row = threadIdx.x / T::kExperts, expert = threadIdx.x % T::kExperts;
    if (my_row < s.rows && my_row < T::kRows && first_expert + expert < s.num_experts) {
      float sum = 0;
#pragma unroll
      for (int w = 0; w < T::kWarps; ++w) sum += smem.sums[w][my_row][expert];
      if (!rehearsal)
        post(p.logits + (int64_t{part} * s.rows + my_row) * s.num_experts + first_expert + expert, sum);
    }
    // Few CTAs wait, and the ones that they wait for need no more than a place each: all get one.
#pragma unroll 1
    for (int row = last - cta; row < s.rows; row += last + 1)
      fewest_select<T>(p, smem, gridDim.x, row, rehearsal);
    __syncthreads();
  }
}

template <int kTiles, int kPerLane>
__global__ void __cluster_dims__(FewTraits::kCluster, 1, 1) __launch_bounds__(FewTraits::kThreads, 2)
    few_kernel(const __grid_constant__ FewParams p) {
  using T = FewTraits;
  __shared__ float sums[T::kRows][T::kExperts + T::kPad];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = blockIdx.x % T::kCluster, part = blockIdx.x / T::kCluster;
  const int first_expert = blockIdx.y * T::kExperts, first_row = blockIdx.z * T::kRows;
  hopper::let_next_kernel_start();
  float acc[kTiles][4] = {};
  const int first_chunk = (part * T::kCluster + rank) * T::kChunks;
  FewWeights weights;
  few_weights(p, first_expert + 8 * warp, first_chunk, weights);
  FewTerms terms;
  few_terms(weights, terms);
  hopper::wait_for_previous_kernel();  // the router's numbers are weights, x is not
  FewRows<kTiles> x;
  few_rows<kTiles>(p, first_row, first_chunk, p.selection.rows, x);
  few_products<kTiles>(x, terms, acc);
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      *reinterpret_cast<float2*>(&sums[16 * t + 8 * h + lane / 4][8 * warp + lane % 4 * 2]) = {
          acc[t][2 * h], acc[t][2 * h + 1]};
  hopper::cluster_arrive();
  hopper::cluster_wait();
  const int my_row = rank * T::kRowsOfCta + warp, row = first_row + my_row;
  const int expert = first_expert + 2 * lane;
  float2 sum = {};
  if (my_row < 16 * kTiles && row < p.selection.rows) {
#pragma unroll
    for (int r = 0; r < T::kCluster; ++r) {
      const float2 other = hopper::load_cluster<float2>(hopper::cluster_address(&sums[my_row][2 * lane], r));
      sum.x += other.x, sum.y += other.y;
    }
  }
  if (row < p.selection.rows) {
    float* const out = p.logits + (int64_t{part} * p.selection.rows + row) * p.selection.num_experts;
    if (expert < p.selection.num_experts) post(out + expert, sum.x);
    if (expert + 1 < p.selection.num_experts) post(out + expert + 1, sum.y);
  }
  // Waited for at the end: a CTA may not be gone while others read its sums. Relaxed: the sums have been
  // read, since they are stored, and the stores concern no CTA of the cluster.
  hopper::cluster_arrive_relaxed_aligned();
  // The last cluster: all that it waits for have been launched before it.
  const int num_parts = gridDim.x / T::kCluster;
  if (part == num_parts - 1 && blockIdx.y == gridDim.y - 1 && row < p.selection.rows) {
    float logit[kPerLane] = {}, bias[kPerLane];
    load_bias(p.selection, bias);
    await_logits(p, num_parts, row, logit);
    select_experts(p.selection, row, logit, bias);
  }
  hopper::cluster_wait();
}

}  // namespace sparrow::ops::cuda
