// SPDX-License-Identifier: Apache-2.0
// Merges the parts of split contexts. Warps take a row's parts in turn, and the warps' sums are added in a
// fixed order.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90::dense {

// A row's parts are shared out over one or all warps of `kSharesOfRow` CTAs, each of which has as large a
// share of the channels. CTAs of few registers find room beside those of the stream kernel: they start before
// that one ends, and let the kernel behind them start as its CTAs end.
template <int kWarpsOfCta, int kWarpsOfRow, int kSharesOfRow, int kLoads>
struct MergeTraits {
  static constexpr int kRowWarps = kWarpsOfRow, kShares = kSharesOfRow, kLaneChannels = kDim / kShares / 32;
  static constexpr int kWarps = kWarpsOfCta, kThreads = 32 * kWarps,
                       kMinCtasPerSm = kWarps > 8 ? 1 : 32 / kWarps;
  static constexpr int kRows = kWarps / kRowWarps;  // of a CTA at a time
  static constexpr int kBatch = kLoads;             // in flight
};
using MergeFew = MergeTraits<4, 1, 1, 4>;
using MergeMany = MergeTraits<8, 8, 4, 17>;    // a part from each multiprocessor
using MergeTiles = MergeTraits<16, 16, 1, 9>;  // likewise, after the tile kernel

template <typename Traits>
struct MergeShared {
  float value[Traits::kWarps][32][Traits::kLaneChannels];
  float2 stats[Traits::kWarps];  // maximum and sum
  int2 stages[Traits::kWarps];
};

// Sums relative to their maximum, of a lane's channels of a row.
template <int kChannels>
struct MergeSums {
  float value[kChannels] = {};
  float top = -INFINITY, total = 0;

  __device__ void raise(float new_top) {
    const float factor = exp2_fast(top - (new_top == -INFINITY ? 0 : new_top));
    top = new_top, total *= factor;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) value[c] *= factor;
  }
  __device__ float factor_of(float part_top) const {
    return exp2_fast(part_top - (top == -INFINITY ? 0 : top));
  }
  __device__ void add(float factor, const float (&x)[kChannels]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) value[c] = fmaf(factor, x[c], value[c]);
  }
};

__device__ inline void load_channels(float (&x)[4], const float* from) {
  const float4 v = __ldcg(reinterpret_cast<const float4*>(from));
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}
__device__ inline void load_channels(float (&x)[1], const float* from) {
  x[0] = __ldcg(from);
}

__device__ inline void store_channels(__nv_bfloat16* to, const float (&x)[4], float scale) {
  *reinterpret_cast<uint2*>(to) =
      make_uint2(pack_pair<false>(x[0] * scale, x[1] * scale), pack_pair<false>(x[2] * scale, x[3] * scale));
}
__device__ inline void store_channels(__nv_bfloat16* to, const float (&x)[1], float scale) {
  *to = __float2bfloat16_rn(x[0] * scale);
}

// Where the parts of a row lie: part i is row `first` + i kStride of the partials, and the first of all
// `ahead` rows further.
template <int kStride>
struct RowParts {
  const float* partial;
  const float2* sums;
  int64_t first;
  int count, ahead = 0;

  __device__ const float2& stats(int i) const { return sums[first + i * kStride + (i == 0 ? ahead : 0)]; }
  __device__ const float* values(int i) const { return partial + (first + int64_t{i} * kStride) * kDim; }
};

// All warps of the row call this, with `warp` from 0, for the channels from `first_channel` on; lane j sees
// to the maximum and sum of the j-th part of a batch.
template <typename Traits, int kStride>
__device__ inline void merge_row(MergeShared<Traits>& shared, const RowParts<kStride>& parts, int warp,
                                 int first_channel, __nv_bfloat16* out) {
  constexpr int kChannels = Traits::kLaneChannels;
  const int lane = threadIdx.x % 32, channel = first_channel + lane * kChannels, count = parts.count;
  MergeSums<kChannels> merged;  // its total: this lane's parts alone
  for (int first = warp; first < count; first += Traits::kBatch * Traits::kRowWarps) {
    const int mine = first + lane * Traits::kRowWarps;
    const float2 stats =
        lane < Traits::kBatch && mine < count ? __ldcg(&parts.stats(mine)) : make_float2(-INFINITY, 0);
    const float* from = parts.values(first) + channel;  // and on in steps that the compiler knows
    float x[Traits::kBatch][kChannels] = {};
    load_channels(x[0], from + (first == 0 ? parts.ahead * kDim : 0));
#pragma unroll
    for (int j = 1; j < Traits::kBatch; ++j)
      if (first + j * Traits::kRowWarps < count)
        load_channels(x[j], from + j * (Traits::kRowWarps * kStride * kDim));
    float top = fmaxf(merged.top, stats.x);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
    merged.raise(top);
    const float factor = merged.factor_of(stats.x);
    merged.total = fmaf(factor, stats.y, merged.total);
#pragma unroll
    for (int j = 0; j < Traits::kBatch; ++j) merged.add(__shfl_sync(~0u, factor, j), x[j]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2)
    merged.total += __shfl_xor_sync(~0u, merged.total, distance);
  if constexpr (Traits::kRowWarps > 1) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) shared.value[warp][lane][c] = merged.value[c];
    if (lane == 0) shared.stats[warp] = make_float2(merged.top, merged.total);
    __syncthreads();
    merged = {};
    float top = -INFINITY;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared.stats[w].x);
    merged.top = top;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      const float factor = merged.factor_of(shared.stats[w].x);
      merged.total = fmaf(factor, shared.stats[w].y, merged.total);
      merged.add(factor, shared.value[w][lane]);
    }
    __syncthreads();
    if (warp > 0) return;
  }
  store_channels(out + channel, merged.value, merged.total > 0 ? 1.0f / merged.total : 0);
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    merge_tiles_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ TileWorkspace ws) {
  __shared__ MergeShared<Traits> shared;
  hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();
  const char* base = static_cast<const char*>(p.workspace);
  constexpr int kTasks = kTileRows * Traits::kShares;  // of a tile
  const int tasks = reinterpret_cast<const TileHeader*>(base)->num_merges * kTasks;
  for (int task = blockIdx.x; task < tasks; task += gridDim.x) {
    const TileMerge merge = reinterpret_cast<const TileMerge*>(base + ws.merges)[task / kTasks];
    const int row = task % kTasks / Traits::kShares, query = row / p.group;
    if (query >= merge.queries) continue;
    const int64_t out_row =
        (int64_t{merge.first_query + query} * p.kv_heads + merge.head) * p.group + row % p.group;
    const RowParts<kTileRows> parts = {reinterpret_cast<const float*>(base + ws.partial),
                                       reinterpret_cast<const float2*>(base + ws.sums),
                                       int64_t{merge.first_partial} * kTileRows + row, merge.count};
    merge_row(shared, parts, threadIdx.x / 32, task % Traits::kShares * kDim / Traits::kShares,
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

// grid: (shares of rows of one KV head's queries / Traits::kRows, KV heads, requests + 1). The last clears
// the padding rows. What describes the batch was there before the stream kernel started, so it is read while
// that still runs.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    merge_stream_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ StreamWorkspace ws,
                        int ctas) {
  __shared__ MergeShared<Traits> shared;
  hopper::let_next_kernel_start();
  const int request = blockIdx.z, head = blockIdx.y, warp = threadIdx.x / 32;
  const int first = first_query_of(p, request);
  if (request == p.num_requests) {
    if (first >= p.total_queries) return;
    hopper::wait_for_previous_kernel();
    return clear_rows(p, first,
                      (blockIdx.y * int64_t{gridDim.x} + blockIdx.x) * Traits::kThreads + threadIdx.x,
                      int64_t{gridDim.x} * gridDim.y * Traits::kThreads);
  }
  const int2 before = stages_before(p, shared, request);
  const int total = before.y * p.kv_heads, own = stages_of(p, request);
  ctas = min(ctas, total);  // as the stream kernel shares the stages out
  const int start = before.x * p.kv_heads + head * own, first_cta = share_of(start, ctas, total);
  const int count = share_of(start + own - 1, ctas, total) - first_cta + 1;
  const int share = static_cast<int>(blockIdx.x) % Traits::kShares;
  const int row = static_cast<int>(blockIdx.x) / Traits::kShares * Traits::kRows + warp / Traits::kRowWarps,
            query = row / p.group;
  const int queries = first_query_of(p, request + 1) - first;
  hopper::wait_for_previous_kernel();
  if (count <= 1 || query >= queries) return;
  const char* base = static_cast<const char*>(p.workspace);
  const int64_t out_row = (int64_t{first + query} * p.kv_heads + head) * p.group + row % p.group;
  // The last of the first CTA's parts, the first of all others'.
  const RowParts<2 * kStreamRows> parts = {reinterpret_cast<const float*>(base + ws.partial),
                                           reinterpret_cast<const float2*>(base + ws.sums),
                                           int64_t{first_cta} * 2 * kStreamRows + row, count, kStreamRows};
  merge_row(shared, parts, warp % Traits::kRowWarps, share * kDim / Traits::kShares, p.out + out_row * kDim);
}

}  // namespace msa::sm90::dense
