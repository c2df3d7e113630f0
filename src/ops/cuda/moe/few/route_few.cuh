// SPDX-License-Identifier: Apache-2.0
// Who goes where, for few rows: every CTA sorts the (row, slot) pairs by expert for itself, in shared memory.
// A launch for it would cost more than the sorting does. A pair with a negative id is not there.
#pragma once

#include <cstdint>

#include "ops/cuda/limits.h"

namespace sparrow::ops::cuda {

inline constexpr int kFewRows = 64, kFewPairs = 256, kFewTopK = kMaxExpertsPerToken;

// A run of at most kTokens places of the sorted order, all of one expert.
struct FewShare {
  int16_t expert, first, count, unused;
};

// kTokens: rows of a share at most. Where it is 8, there are no more rows than that, unless told otherwise.
template <int kTokens_, int kMaxRows_ = kTokens_ == 8 ? 8 : kFewRows>
struct RouteFew {
  static constexpr int kTokens = kTokens_, kMaxRows = kMaxRows_;
  static constexpr int kMaxPairs = kMaxRows == 8 ? 8 * kFewTopK : kFewPairs,
                       kMaxPlaces = kMaxPairs + kMaxRows;
  int32_t num_shares, num_routed;  // num_routed: pairs that are there; they have the first places
  // place -> pair (row * top_k + slot); the shared expert's places, from rows * top_k on: rows * top_k + row
  int16_t pair_at[kMaxPlaces];
  FewShare shares[kMaxPlaces];  // ascending by expert
  int16_t ids[kMaxPairs];
  int32_t begin[kMaxExperts + 1];  // of each expert's places; counts while they are being summed
};

__device__ __forceinline__ FewShare few_share(int expert, int first, int count) {
  return {static_cast<int16_t>(expert), static_cast<int16_t>(first), static_cast<int16_t>(count), 0};
}

// -1: the pair is not there. Rows that are padding may carry any id.
__device__ __forceinline__ int expert_of_pair(const int32_t* ids, int pair, int num_experts) {
  return max(-1, min(ids[pair], num_experts - 1));
}

// The routing of at most 32 pairs, by one warp without a barrier.
template <int kTokens, int kMaxRows>
__device__ __forceinline__ void route_fewest(RouteFew<kTokens, kMaxRows>& route, const int32_t* ids, int rows,
                                             int num_experts, int top_k) {
  const int pairs = rows * top_k, lane = threadIdx.x % 32;
  const int expert = lane < pairs ? expert_of_pair(ids, lane, num_experts) : -1;
  const bool there = expert >= 0;
  const int id = there ? expert : num_experts;
  int below = 0, before = 0, same = 0;  // pairs of lower experts; of this one: in earlier rows, in all
#pragma unroll 1
  for (int q = 0; q < pairs; ++q) {
    const int other = __shfl_sync(0xffffffff, id, q);
    below += other < id, same += other == id, before += other == id && q < lane;
  }
  const int place = below + before;
  const bool leads = there && before % kTokens == 0;
  const uint32_t leaders = __reduce_or_sync(0xffffffff, leads ? 1u << place : 0u);
  const int routed_shares = __popc(leaders), shared_shares = (rows + kTokens - 1) / kTokens;
  if (leads)
    route.shares[__popc(leaders & ((1u << place) - 1))] = few_share(id, place, min(kTokens, same - before));
  if (there) route.pair_at[place] = static_cast<int16_t>(lane);
  const int routed = __popc(__ballot_sync(0xffffffff, there));
#pragma unroll 1
  for (int r = lane; r < rows; r += 32) route.pair_at[pairs + r] = static_cast<int16_t>(pairs + r);
#pragma unroll 1
  for (int s = lane; s < shared_shares; s += 32)
    route.shares[routed_shares + s] =
        few_share(num_experts, pairs + s * kTokens, min(kTokens, rows - s * kTokens));
  if (lane == 0) route.num_shares = routed_shares + shared_shares, route.num_routed = routed;
}

// Block-wide, with at least 32 threads; ends with a barrier. Places ascend by row within an expert.
template <int kTokens, int kMaxRows>
__device__ __forceinline__ void route_few(RouteFew<kTokens, kMaxRows>& route, const int32_t* ids, int rows,
                                          int num_experts, int top_k) {
  const int pairs = rows * top_k, thread = threadIdx.x;
  if (pairs <= 32) {
    if (thread < 32) route_fewest(route, ids, rows, num_experts, top_k);
    __syncthreads();
    return;
  }
#pragma unroll 1
  for (int e = thread; e < num_experts; e += blockDim.x) route.begin[e] = 0;
#pragma unroll 1
  for (int p = thread; p < pairs; p += blockDim.x)
    route.ids[p] = static_cast<int16_t>(expert_of_pair(ids, p, num_experts));
  __syncthreads();
#pragma unroll 1
  for (int p = thread; p < pairs; p += blockDim.x)
    if (route.ids[p] >= 0) atomicAdd(&route.begin[route.ids[p]], 1);
  __syncthreads();
  if (thread < 32) {
    constexpr int kPerLane = kMaxExperts / 32;
    int counts[kPerLane], places = 0, shares = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = thread * kPerLane + i;
      counts[i] = e < num_experts ? route.begin[e] : 0;
      places += counts[i], shares += (counts[i] + kTokens - 1) / kTokens;
    }
    int place = places, share = shares;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int p = __shfl_up_sync(0xffffffff, place, distance);
      const int s = __shfl_up_sync(0xffffffff, share, distance);
      if (thread >= distance) place += p, share += s;
    }
    const int routed_shares = __shfl_sync(0xffffffff, share, 31);
    const int routed = __shfl_sync(0xffffffff, place, 31);
    place -= places, share -= shares;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int e = thread * kPerLane + i;
      if (e < num_experts) route.begin[e] = place;
#pragma unroll 1
      for (int done = 0; done < counts[i]; done += kTokens)
        route.shares[share++] = few_share(e, place + done, min(kTokens, counts[i] - done));
      place += counts[i];
    }
#pragma unroll 1
    for (int done = thread * kTokens; done < rows; done += 32 * kTokens)
      route.shares[routed_shares + done / kTokens] =
          few_share(num_experts, pairs + done, min(kTokens, rows - done));
    if (thread == 0)
      route.num_shares = routed_shares + (rows + kTokens - 1) / kTokens, route.num_routed = routed;
  }
  __syncthreads();
#pragma unroll 1
  for (int p = thread; p < pairs; p += blockDim.x) {
    const int id = route.ids[p];
    if (id < 0) continue;
    int rank = 0;
#pragma unroll 8
    for (int q = 0; q < p; ++q) rank += route.ids[q] == id;
    route.pair_at[route.begin[id] + rank] = static_cast<int16_t>(p);
  }
#pragma unroll 1
  for (int r = thread; r < rows; r += blockDim.x) route.pair_at[pairs + r] = static_cast<int16_t>(pairs + r);
  __syncthreads();
}

// The row of a pair.
__device__ __forceinline__ int row_of_pair(int pair, int pairs, int top_k) {
  return pair < pairs ? pair / top_k : pair - pairs;
}

}  // namespace sparrow::ops::cuda
