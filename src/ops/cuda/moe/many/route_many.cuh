// SPDX-License-Identifier: Apache-2.0
// Who goes where, for many rows: the CTAs of one cluster sort the (row, slot) pairs by expert and cut each
// expert's places into token tiles. Which of an expert's places a pair gets is left to chance: no bit of any
// result depends on it. A pair with a negative id is not there.
#pragma once

#include <cstdint>

#include "ops/gpu_workspace.h"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct RouteManyParams {
  const int32_t* ids = nullptr;  // [rows, top_k]
  int32_t* row_at = nullptr;     // [pairs + rows] place -> row; the shared expert's places come last
  int32_t* place_of = nullptr;   // [pairs]; -1: not there
  Share* shares = nullptr;       // the shared expert's (the widest), then ascending by expert
  int32_t* num_shares = nullptr;
  int rows = 0, num_experts = 0, top_k = 0;
  int share_tokens = 0;  // at most
  bool shared = true;    // whether there is a shared expert
};

struct RouteMany {
  static constexpr int kCluster = 8, kThreads = 1024, kMaxExperts = cuda::kMaxExperts, kLoads = 4;
  static constexpr int kStep = 16;  // of a tile's width
  struct Smem {
    int32_t count[kMaxExperts];                                           // of this CTA's pairs
    int32_t total[kMaxExperts], before[kMaxExperts], begin[kMaxExperts];  // before: in CTAs of lower rank
  };
};

// Even tiles of at most share_tokens. Even, although fewer columns would go to waste otherwise: CTAs with the
// same weights then stay together, and one of them finds in the L2 what the other has fetched.
__device__ __forceinline__ int tiles_of(const RouteManyParams& p, int count) {
  return (count + p.share_tokens - 1) / p.share_tokens;
}
__device__ __forceinline__ Share tile_of(const RouteManyParams& p, int expert, int begin, int count,
                                         int tile) {
  const int tiles = tiles_of(p, count), size = (count + tiles - 1) / tiles;
  return {expert, begin + tile * size, min(size, count - tile * size), 0};
}

// Calls visit(pair, expert, rank) for this thread's pairs, several loads ahead; the expert is -1 where the
// pair is not there, ranks are what place_of holds, or 0.
template <bool kRanks, typename Visit>
__device__ __forceinline__ void visit_pairs(const RouteManyParams& p, int pairs, const Visit& visit) {
  constexpr int kStride = RouteMany::kThreads * RouteMany::kCluster;
  const int first = blockIdx.x * RouteMany::kThreads + threadIdx.x;
  for (int base = first; base < pairs; base += kStride * RouteMany::kLoads) {
    int ids[RouteMany::kLoads], ranks[RouteMany::kLoads];
#pragma unroll
    for (int i = 0; i < RouteMany::kLoads; ++i) {
      const int pair = base + i * kStride;
      // Rows that are padding may carry any id.
      ids[i] = pair < pairs ? max(-1, min(p.ids[pair], p.num_experts - 1)) : -1;
      ranks[i] = kRanks && pair < pairs ? p.place_of[pair] : 0;
    }
#pragma unroll
    for (int i = 0; i < RouteMany::kLoads; ++i)
      if (base + i * kStride < pairs) visit(base + i * kStride, ids[i], ranks[i]);
  }
}

// One warp: where each expert's places begin, and (first CTA) the list of tiles.
__device__ __forceinline__ void list_tiles(const RouteManyParams& p, RouteMany::Smem& smem, int pairs) {
  constexpr int kPerLane = RouteMany::kMaxExperts / 32;
  const int lane = threadIdx.x % 32;
  int places = 0, tiles = 0;
  for (int i = 0; i < kPerLane; ++i) {
    const int count = smem.total[lane * kPerLane + i];
    places += count, tiles += tiles_of(p, count);
  }
  int place = places, tile = tiles;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int a = __shfl_up_sync(0xffffffff, place, distance);
    const int b = __shfl_up_sync(0xffffffff, tile, distance);
    if (lane >= distance) place += a, tile += b;
  }
  const int routed_tiles = __shfl_sync(0xffffffff, tile, 31),
            shared_tiles = p.shared ? tiles_of(p, p.rows) : 0;
  place -= places, tile += shared_tiles - tiles;
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane * kPerLane + i, count = smem.total[e];
    smem.begin[e] = place + smem.before[e];
    for (int t = 0; t < tiles_of(p, count) && blockIdx.x == 0; ++t)
      p.shares[tile++] = tile_of(p, e, place, count, t);
    place += count;
  }
  if (blockIdx.x != 0) return;
  for (int t = lane; t < shared_tiles; t += 32) p.shares[t] = tile_of(p, p.num_experts, pairs, p.rows, t);
  if (lane == 0) *p.num_shares = routed_tiles + shared_tiles;
}

// Counts of all CTAs of the cluster, and of those before this one.
__device__ __forceinline__ void sum_counts(RouteMany::Smem& smem) {
  const int e = threadIdx.x;
  int total = 0, before = 0;
#pragma unroll
  for (int rank = 0; rank < RouteMany::kCluster; ++rank) {
    const int count = hopper::load_cluster<int32_t>(hopper::cluster_address(&smem.count[e], rank));
    if (rank < static_cast<int>(blockIdx.x)) before += count;
    total += count;
  }
  smem.total[e] = total, smem.before[e] = before;
}

static __global__ void __cluster_dims__(RouteMany::kCluster, 1, 1) __launch_bounds__(RouteMany::kThreads, 1)
    route_many_kernel(const __grid_constant__ RouteManyParams p) {
  __shared__ RouteMany::Smem smem;
  const int thread = threadIdx.x, pairs = p.rows * p.top_k;
  hopper::let_next_kernel_start();
  if (thread < RouteMany::kMaxExperts) smem.count[thread] = 0;
  __syncthreads();
  hopper::wait_for_previous_kernel();
  visit_pairs<false>(p, pairs, [&](int pair, int id, int) {
    p.place_of[pair] = id < 0 ? -1 : atomicAdd(&smem.count[id], 1);
  });
  __syncthreads();
  hopper::cluster_arrive();
  hopper::cluster_wait();
  if (thread < RouteMany::kMaxExperts) sum_counts(smem);
  __syncthreads();
  hopper::cluster_arrive();  // nobody may leave while others read its counts
  if (thread < 32) list_tiles(p, smem, pairs);
  __syncthreads();
  visit_pairs<true>(p, pairs, [&](int pair, int id, int rank) {
    if (id < 0) return;
    const int place = smem.begin[id] + rank;
    p.place_of[pair] = place;
    p.row_at[place] = pair / p.top_k;
  });
  for (int r = blockIdx.x * RouteMany::kThreads + thread; r < p.rows;
       r += RouteMany::kThreads * RouteMany::kCluster)
    p.row_at[pairs + r] = r;
  hopper::cluster_wait();
}

}  // namespace sparrow::ops::cuda
