// SPDX-License-Identifier: Apache-2.0
// Merges the parts of split contexts, a CTA or a warp for each row. Warps take a row's parts in turn, and the
// warps' sums are added in a fixed order.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"

namespace msa::sm90::dense {

// A row's parts are shared out over some or all warps of a CTA.
template <int kWarpsOfRow>
struct MergeTraits {
  static constexpr int kRowWarps = kWarpsOfRow;
  static constexpr int kWarps = 16, kThreads = 32 * kWarps, kMinCtasPerSm = 1;
  static constexpr int kRows = kWarps / kRowWarps;  // of a CTA at a time
  static constexpr int kBatch = 9;  // loads in flight: for 16 warps, a part from each multiprocessor
};

// Sums relative to their maximum; four channels of a row per lane.
struct MergeSums {
  float4 value = {0, 0, 0, 0};
  float top = -INFINITY, total = 0;

  __device__ void rescale(float new_top) {
    const float factor = exp2_fast(top - (new_top == -INFINITY ? 0 : new_top));
    top = new_top, total *= factor;
    value.x *= factor, value.y *= factor, value.z *= factor, value.w *= factor;
  }
  // What lies below `top` already.
  __device__ void add(const float2& stats, const float4& x) {
    const float factor = exp2_fast(stats.x - (top == -INFINITY ? 0 : top));
    total = fmaf(factor, stats.y, total);
    value.x = fmaf(factor, x.x, value.x), value.y = fmaf(factor, x.y, value.y);
    value.z = fmaf(factor, x.z, value.z), value.w = fmaf(factor, x.w, value.w);
  }
};

template <typename Traits>
struct MergeShared {
  float4 value[Traits::kWarps][32];
  float2 stats[Traits::kWarps];  // maximum and sum
  int2 stages[Traits::kWarps];
};

// Part i of the row is row place(i) of the partials. All warps of the row call this, with `warp` from 0.
template <typename Traits, typename Place>
__device__ inline void merge_row(MergeShared<Traits>& shared, const float* partial, const float2* sums,
                                 const Place& place, int count, int warp, __nv_bfloat16* out) {
  const int lane = threadIdx.x % 32;
  MergeSums merged;
  for (int first = warp; first < count; first += Traits::kBatch * Traits::kRowWarps) {
    float2 stats[Traits::kBatch];
    float4 x[Traits::kBatch];
    float top = merged.top;
#pragma unroll
    for (int j = 0; j < Traits::kBatch; ++j) {
      const int i = first + j * Traits::kRowWarps;
      stats[j] = i < count ? __ldcg(&sums[place(i)]) : make_float2(-INFINITY, 0);
      x[j] = i < count ? __ldcg(reinterpret_cast<const float4*>(partial) + place(i) * (kDim / 4) + lane)
                       : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int j = 0; j < Traits::kBatch; ++j) top = fmaxf(top, stats[j].x);
    merged.rescale(top);
#pragma unroll
    for (int j = 0; j < Traits::kBatch; ++j) merged.add(stats[j], x[j]);
  }
  if constexpr (Traits::kRowWarps > 1) {
    shared.value[warp][lane] = merged.value;
    if (lane == 0) shared.stats[warp] = make_float2(merged.top, merged.total);
    __syncthreads();
    merged = {};
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) merged.top = fmaxf(merged.top, shared.stats[w].x);
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) merged.add(shared.stats[w], shared.value[w][lane]);
    __syncthreads();
    if (warp > 0) return;
  }
  const float scale = merged.total > 0 ? 1.0f / merged.total : 0;
  reinterpret_cast<uint2*>(out)[lane] = make_uint2(pack_bf16(merged.value.x * scale, merged.value.y * scale),
                                                   pack_bf16(merged.value.z * scale, merged.value.w * scale));
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    merge_tiles_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ TileWorkspace ws) {
  __shared__ MergeShared<Traits> shared;
  let_next_kernel_start();
  wait_for_previous_kernel();
  const char* base = static_cast<const char*>(p.workspace);
  const int tasks = reinterpret_cast<const TileHeader*>(base)->num_merges * kTileRows;
  for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
    const TileMerge merge = reinterpret_cast<const TileMerge*>(base + ws.merges)[task / kTileRows];
    const int row = task % kTileRows, query = row / p.group;
    if (query >= merge.queries) continue;
    const int64_t first = int64_t{merge.first_partial} * kTileRows + row;
    const int64_t out_row =
        (int64_t{merge.first_query + query} * p.kv_heads + merge.head) * p.group + row % p.group;
    merge_row(
        shared, reinterpret_cast<const float*>(base + ws.partial),
        reinterpret_cast<const float2*>(base + ws.sums),
        [&](int i) { return first + int64_t{i} * kTileRows; }, merge.count, threadIdx.x / 32,
        p.out + out_row * kDim);
  }
}

// Stages of one KV head before `request` and of all requests.
template <typename Traits>
__device__ inline int2 stages_before(const DenseParams& p, MergeShared<Traits>& shared, int request) {
  int before = 0, all = 0;
  for (int r = threadIdx.x; r < p.num_requests; r += Traits::kThreads) {
    const int own = stages_of(p, r);
    all += own;
    if (r < request) before += own;
  }
  before = __reduce_add_sync(~0u, before), all = __reduce_add_sync(~0u, all);
  if (threadIdx.x % 32 == 0) shared.stages[threadIdx.x / 32] = make_int2(before, all);
  __syncthreads();
  int2 sum = make_int2(0, 0);
  for (int w = 0; w < Traits::kWarps; ++w) sum.x += shared.stages[w].x, sum.y += shared.stages[w].y;
  return sum;
}

__device__ inline void clear_rows(const DenseParams& p, int first, int64_t thread, int64_t threads) {
  const int64_t width = int64_t{p.kv_heads} * p.group * kDim;
  uint4* rest = reinterpret_cast<uint4*>(p.out + first * width);
  for (int64_t i = thread; i < (p.total_queries - first) * width / 8; i += threads)
    rest[i] = make_uint4(0, 0, 0, 0);
}

// grid: (rows of one KV head's queries / Traits::kRows, KV heads, requests + 1). The last clears the padding
// rows. What describes the batch was there before the stream kernel started, so it is read while that still
// runs.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    merge_stream_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ StreamWorkspace ws,
                        int ctas) {
  __shared__ MergeShared<Traits> shared;
  let_next_kernel_start();
  const int request = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32;
  const int first = first_query_of(p, request);
  if (request == p.num_requests) {
    wait_for_previous_kernel();
    return clear_rows(p, first,
                      (blockIdx.y * int64_t{gridDim.x} + blockIdx.x) * Traits::kThreads + threadIdx.x,
                      int64_t{gridDim.x} * gridDim.y * Traits::kThreads);
  }
  const int2 before = stages_before(p, shared, request);
  const int total = before.y * p.kv_heads, own = stages_of(p, request);
  const int start = before.x * p.kv_heads + head * own, first_cta = share_of(start, ctas, total);
  const int count = share_of(start + own - 1, ctas, total) - first_cta + 1;
  const int row = blockIdx.x * Traits::kRows + warp / Traits::kRowWarps, query = row / p.group;
  const int queries = first_query_of(p, request + 1) - first;
  wait_for_previous_kernel();
  if (count <= 1 || query >= queries) return;
  const char* base = static_cast<const char*>(p.workspace);
  // The last of the first CTA's parts, the first of all others'.
  const auto place = [&](int i) {
    return (2 * int64_t{first_cta + i} + (i == 0 ? 1 : 0)) * kStreamRows + row;
  };
  const int64_t out_row = (int64_t{first + query} * p.kv_heads + head) * p.group + row % p.group;
  merge_row(shared, reinterpret_cast<const float*>(base + ws.partial),
            reinterpret_cast<const float2*>(base + ws.sums), place, count, warp % Traits::kRowWarps,
            p.out + out_row * kDim);
}

}  // namespace msa::sm90::dense
