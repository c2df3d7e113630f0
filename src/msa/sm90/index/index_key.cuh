// SPDX-License-Identifier: Apache-2.0
// Candidates as 64-bit keys whose unsigned order is the order of preference, and warp-wide selection on them.
//
//   bits 63..32  the score as an ordered integer; forced blocks lie above every number
//   bits 31..4   ~block (ties go to the lower id); for forced blocks the block itself (nearest to the query
//   first) bits  3..0   free for the owner of a list; (score, block) is unique, so they never decide
// 0 is no candidate.
#pragma once

#include "msa/sm90/index/index_params.h"

namespace msa::sm90 {

inline constexpr uint32_t kFullWarp = 0xffffffffu;
inline constexpr uint32_t kForcedLocal = 0xffffffffu;
inline constexpr uint32_t kForcedInit = 0xfffffffeu;
inline constexpr uint32_t kBlockMask = 0x0fffffffu;
inline constexpr float kLowest = -__builtin_huge_valf();

__device__ __forceinline__ uint64_t make_key(float score, int block, int own, const IndexSelection& s) {
  // + 0 turns -0 into +0, which compare equal; NaN became -inf in the maximum.
  const uint32_t bits = __float_as_uint(score + 0.0f);
  uint32_t high = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  uint32_t field = ~static_cast<uint32_t>(block) & kBlockMask;
  if (block < s.init_blocks) high = kForcedInit, field = block;
  if (block > own - s.local_blocks) high = kForcedLocal, field = block;
  return block > own ? 0 : (uint64_t{high} << 32) | (field << 4);
}

__device__ __forceinline__ int block_of_key(uint64_t key) {
  const uint32_t high = static_cast<uint32_t>(key >> 32), field = static_cast<uint32_t>(key) >> 4;
  return static_cast<int>(high >= kForcedInit ? field : ~field & kBlockMask);
}

__device__ __forceinline__ uint64_t max_key(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

// Scratch of one warp.
struct alignas(16) KeyScratch {
  uint64_t keys[32];
};

// How many of the warp's keys are larger than this lane's.
__device__ __forceinline__ int warp_rank(uint64_t key, KeyScratch& scratch) {
  __syncwarp();
  scratch.keys[threadIdx.x % 32] = key;
  __syncwarp();
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const ulonglong2 pair = reinterpret_cast<const ulonglong2*>(scratch.keys)[i];
    rank += (pair.x > key) + (pair.y > key);
  }
  return rank;
}

// Lane i gets the key of rank i, 0 where no lane has that rank. Keys other than 0 are unique.
__device__ __forceinline__ uint64_t warp_sorted(uint64_t key, KeyScratch& scratch) {
  const int rank = warp_rank(key, scratch);
  __syncwarp();
  scratch.keys[threadIdx.x % 32] = 0;
  __syncwarp();
  if (key != 0) scratch.keys[rank] = key;
  __syncwarp();
  return scratch.keys[threadIdx.x % 32];
}

// The 16 largest of the warp's 32 x kPerLane keys: lane i < 16 returns the i-th largest, 0 when there are
// fewer.
//
// The 16th largest of the lanes' own maxima bounds the 16th largest key from below, and few keys pass it:
// those are ranked. Should more than 32 pass, the largest is taken out 16 times.
template <int kPerLane>
__device__ __forceinline__ uint64_t warp_largest(uint64_t (&keys)[kPerLane], KeyScratch& scratch) {
  const int lane = threadIdx.x % 32;
  uint64_t mine = keys[0];
#pragma unroll
  for (int i = 1; i < kPerLane; ++i) mine = max_key(mine, keys[i]);
  const uint64_t sorted = warp_sorted(mine, scratch);
  if constexpr (kPerLane == 1) return lane < kListLength ? sorted : 0;
  const uint64_t bound = max_key(__shfl_sync(kFullWarp, sorted, kListLength - 1), 1);
  int count = 0;
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const uint32_t passing = __ballot_sync(kFullWarp, keys[i] >= bound);
    const int at = count + __popc(passing & ((1u << lane) - 1));
    if (keys[i] >= bound && at < 32) scratch.keys[at] = keys[i];
    count += __popc(passing);
  }
  __syncwarp();
  if (count <= 32) {
    const uint64_t passed = lane < count ? scratch.keys[lane] : 0;
    const uint64_t result = warp_sorted(passed, scratch);
    return lane < kListLength ? result : 0;
  }
  uint64_t top = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const uint64_t chunk = warp_sorted(keys[i], scratch);
    const uint64_t moved = __shfl_sync(kFullWarp, top, lane % kListLength);
    top = warp_sorted(lane < kListLength ? chunk : moved, scratch);
  }
  return lane < kListLength ? top : 0;
}

// The 16 largest of kWarps lists, one in lanes [0, 16) of each warp. All threads call it; the first warp has
// the result.
template <int kWarps>
__device__ __forceinline__ uint64_t cta_largest(uint64_t top, uint64_t (&lists)[kWarps][kListLength],
                                                KeyScratch& scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane < kListLength) lists[warp][lane] = top;
  __syncthreads();
  if (warp != 0) return 0;
  constexpr int kPerLane = kWarps * kListLength / 32;
  uint64_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)  // lists are sorted: each lane takes large and small ones
    keys[i] = lists[i * 2 + lane / kListLength][(lane + i * kListLength / kPerLane) % kListLength];
  return warp_largest(keys, scratch);
}

// Writes the blocks of lanes [0, top_k) in ascending order, -1 at the tail.
__device__ __forceinline__ void store_selection(uint64_t key, int top_k, int32_t* out) {
  const int lane = threadIdx.x % 32;
  const int block = key != 0 ? block_of_key(key) : INT32_MAX - kListLength + lane % kListLength;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < kListLength; ++i) {
    const int other = __shfl_sync(kFullWarp, block, i);
    rank += i < top_k && other < block;
  }
  if (lane < top_k) out[rank] = key != 0 ? block : -1;
}

// A request's rows and position, from the batch's metadata.
struct RequestRows {
  int first_row;  // among all rows
  int rows;       // queries x heads
  int first_position;
  int seq_len;
};

__device__ __forceinline__ RequestRows request_rows(const IndexBatch& b, int request) {
  const int begin = b.cu_seqlens_q != nullptr ? b.cu_seqlens_q[request] : request * b.queries;
  const int end = b.cu_seqlens_q != nullptr ? b.cu_seqlens_q[request + 1] : begin + b.queries;
  const int seq_len = b.seq_lens[request];
  const bool empty = seq_len < end - begin || end <= begin;
  return {begin * b.heads, empty ? 0 : (end - begin) * b.heads, seq_len - (end - begin), seq_len};
}

// How many of a share's blocks of a request come before logical block `end`; at most two of all do not.
__device__ __forceinline__ int listed_before(const IndexShareList& share, const IndexBatch& b, int request,
                                             int end) {
  const int32_t* blocks = share.blocks + int64_t{request} * b.max_blocks;
  int count = share.counts[request];
  while (count > 0 && blocks[count - 1] >= end) --count;
  return count;
}

// The request of a row, or -1 for a row behind the last request.
__device__ __forceinline__ int request_of_row(const IndexBatch& b, int row) {
  const int query = row / b.heads;
  if (b.cu_seqlens_q == nullptr) return query / b.queries;
  int low = 0, high = b.num_requests;  // the last request that begins at or before `query` and is not empty
  while (low < high) {
    const int middle = (low + high) / 2;
    if (b.cu_seqlens_q[middle + 1] > query) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low < b.num_requests ? low : -1;
}

}  // namespace msa::sm90
