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

// The experts of 32 pairs, bit by bit: pair i of the group has bit i of every word.
struct alignas(16) PairPlanes {
  uint32_t bit[8], there;
};
static_assert(kMaxExperts <= 256);

// kTokens: rows of a share at most. Where it is 8, there are no more rows than that, unless told otherwise.
template <int kTokens_, int kMaxRows_ = kTokens_ == 8 ? 8 : kFewRows>
struct RouteFew {
  static constexpr int kTokens = kTokens_, kMaxRows = kMaxRows_;
  static constexpr int kMaxPairs = kMaxRows == 8 ? 8 * kFewTopK : kFewPairs,
                       kMaxPlaces = kMaxPairs + kMaxRows;
  static_assert(kMaxPairs % 32 == 0 && kMaxExperts % 32 == 0);
  int32_t num_shares, num_routed;  // num_routed: pairs that are there; they have the first places
  // place -> pair (row * top_k + slot); the shared expert's places, from rows * top_k on: rows * top_k + row
  int16_t pair_at[kMaxPlaces];
  FewShare shares[kMaxPlaces];  // ascending by expert
  int16_t ids[kMaxPairs];
  PairPlanes planes[kMaxPairs / 32];
  // Places (low half) and shares (high half) of the experts up to each one, among 32 of them; of all 32.
  int32_t upto[kMaxExperts];
  alignas(16) int32_t all[kMaxExperts / 32];

  // Both, of all experts below this one.
  __device__ __forceinline__ int32_t below(int expert) const {
    int32_t sum = expert % 32 > 0 ? upto[expert - 1] : 0;
#pragma unroll
    for (int i = 0; i < kMaxExperts / 32; ++i) sum += i < expert / 32 ? all[i] : 0;
    return sum;
  }
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

// Which pairs of a group go to an expert.
__device__ __forceinline__ uint32_t pairs_of_expert(const PairPlanes& planes, int expert) {
  uint32_t pairs = planes.there;
#pragma unroll
  for (int b = 0; b < 8; ++b) pairs &= planes.bit[b] ^ ((expert >> b & 1) - 1);
  return pairs;
}

// Block-wide, with whole warps; ends with a barrier. Places ascend by row within an expert: the kernels of
// both products sort for themselves and must agree. Nobody computes before this is done, so it must be short:
// pairs are compared 32 at a time.
template <int kTokens, int kMaxRows>
__device__ __forceinline__ void route_few(RouteFew<kTokens, kMaxRows>& route, const int32_t* ids, int rows,
                                          int num_experts, int top_k) {
  const int pairs = rows * top_k, thread = threadIdx.x;
  if (pairs <= 32) {
    if (thread < 32) route_fewest(route, ids, rows, num_experts, top_k);
    __syncthreads();
    return;
  }
  const int warp = thread / 32, lane = thread % 32, warps = blockDim.x / 32, groups = (pairs + 31) / 32;
#pragma unroll 1
  for (int group = warp; group < groups; group += warps) {
    const int pair = group * 32 + lane;
    const int id = pair < pairs ? expert_of_pair(ids, pair, num_experts) : -1;
    route.ids[pair] = static_cast<int16_t>(id);
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const uint32_t bits = __ballot_sync(0xffffffff, id >> b & 1);
      if (lane == b) route.planes[group].bit[b] = bits;
    }
    const uint32_t there = __ballot_sync(0xffffffff, id >= 0);
    if (lane == 8) route.planes[group].there = there;
  }
  __syncthreads();
  const int experts_32 = (num_experts + 31) / 32;
#pragma unroll 1
  for (int i = warp; i < experts_32; i += warps) {
    int count = 0;
#pragma unroll 4
    for (int group = 0; group < groups; ++group)
      count += __popc(pairs_of_expert(route.planes[group], i * 32 + lane));
    int upto = count | (count + kTokens - 1) / kTokens << 16;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(0xffffffff, upto, distance);
      if (lane >= distance) upto += before;
    }
    route.upto[i * 32 + lane] = upto;
    if (lane == 31) route.all[i] = upto;
  }
  __syncthreads();
  const int32_t routed = route.below(experts_32 * 32);
#pragma unroll 1
  for (int e = thread; e < num_experts; e += blockDim.x) {
    const int32_t below = route.below(e), mine = route.upto[e] - (e % 32 > 0 ? route.upto[e - 1] : 0);
    const int place = below & 0xffff, count = mine & 0xffff;
#pragma unroll 1
    for (int done = 0; done < count; done += kTokens)
      route.shares[(below >> 16) + done / kTokens] = few_share(e, place + done, min(kTokens, count - done));
  }
  // From the other end of the block: the first warps have the experts.
#pragma unroll 1
  for (int p = static_cast<int>(blockDim.x) - 1 - thread; p < pairs; p += blockDim.x) {
    const int id = route.ids[p], group = p / 32;
    if (id < 0) continue;
    int place =
        (route.below(id) & 0xffff) + __popc(pairs_of_expert(route.planes[group], id) & ((1u << p % 32) - 1));
#pragma unroll 4
    for (int g = 0; g < group; ++g) place += __popc(pairs_of_expert(route.planes[g], id));
    route.pair_at[place] = static_cast<int16_t>(p);
  }
#pragma unroll 1
  for (int r = thread; r < rows; r += blockDim.x) {
    route.pair_at[pairs + r] = static_cast<int16_t>(pairs + r);
    if (r % kTokens == 0)
      route.shares[(routed >> 16) + r / kTokens] = few_share(num_experts, pairs + r, min(kTokens, rows - r));
  }
  if (thread == 0)
    route.num_shares = (routed >> 16) + (rows + kTokens - 1) / kTokens, route.num_routed = routed & 0xffff;
  __syncthreads();
}

// The row of a pair.
__device__ __forceinline__ int row_of_pair(int pair, int pairs, int top_k) {
  return pair < pairs ? pair / top_k : pair - pairs;
}

}  // namespace sparrow::ops::cuda
