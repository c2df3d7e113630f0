// SPDX-License-Identifier: Apache-2.0
// The best blocks of a row from all of its scores, by one CTA: a device function, which attention runs for
// itself where there are few rows, and a kernel with a CTA for each row.
//
// In a decode step this code is never in the instruction cache, and fetching it takes longer than running it:
// what runs once is kept short, and what rarely runs is a loop.
#pragma once

#include "msa/sm90/index/index_key.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

// Scratch of a CTA that selects together.
template <int kWarps>
struct SelectScratch {
  static constexpr int kPassed = 64;
  uint64_t maxima[kWarps][32];
  alignas(16) uint64_t columns[32];
  uint64_t passed[kPassed];
  uint64_t bound;
  uint64_t top[kListLength];                // best first
  alignas(16) int32_t blocks[kListLength];  // ascending
  int count;
};

// The 16 largest by taking the largest out 16 times: for keys that the bound does not sieve.
template <int kWarps, int kKeys>
__device__ __forceinline__ void select_by_rounds(const uint64_t (&keys)[kKeys],
                                                 SelectScratch<kWarps>& scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t last = ~uint64_t{0};
  const auto warp_largest_key = [](uint64_t key) {
#pragma unroll 1
    for (int distance = 16; distance > 0; distance /= 2)
      key = max_key(key, __shfl_xor_sync(kFullWarp, key, distance));
    return key;
  };
#pragma unroll 1
  for (int round = 0; round < kListLength; ++round) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i)
      if (keys[i] < last) best = max_key(best, keys[i]);
    best = warp_largest_key(best);
    if (lane == 0) scratch.maxima[warp][round] = best;
    __syncthreads();
    last = warp_largest_key(lane < kWarps ? scratch.maxima[lane % kWarps][round] : 0);
    if (threadIdx.x == 0) scratch.top[round] = last;
    if (last == 0) last = 1;  // none is left
  }
}

// The 16 largest of all threads' keys into scratch.top, 0 where there are fewer. Keys other than 0 are
// unique. Ends with a barrier.
//
// The 16th largest of the maxima of lanes of equal number bounds the 16th largest key from below; the few
// keys that pass it, 22 on average however many there are, are ranked against each other.
template <int kWarps, int kKeys>
__device__ __forceinline__ void cta_largest(const uint64_t (&keys)[kKeys], SelectScratch<kWarps>& scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint64_t mine = keys[0];
#pragma unroll
  for (int i = 1; i < kKeys; ++i) mine = max_key(mine, keys[i]);
  scratch.maxima[warp][lane] = mine;
  __syncthreads();
  if (warp == 0) {
#pragma unroll 4
    for (int w = 1; w < kWarps; ++w) mine = max_key(mine, scratch.maxima[w][lane]);
    scratch.columns[lane] = mine;
    if (lane < kListLength) scratch.top[lane] = 0;
    if (lane == 0) scratch.count = 0, scratch.bound = 1;
    __syncwarp();
    int rank = 0;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const ulonglong2 pair = reinterpret_cast<const ulonglong2*>(scratch.columns)[i];
      rank += (pair.x > mine) + (pair.y > mine);
    }
    if (rank == kListLength - 1 && mine != 0) scratch.bound = mine;
  }
  __syncthreads();
  const uint64_t bound = scratch.bound;
#pragma unroll
  for (int i = 0; i < kKeys; ++i)
    if (keys[i] >= bound) {
      const int at = atomicAdd(&scratch.count, 1);
      if (at < scratch.kPassed) scratch.passed[at] = keys[i];
    }
  __syncthreads();
  const int count = scratch.count;
  if (count > scratch.kPassed) {
    select_by_rounds(keys, scratch);
  } else if (threadIdx.x < count) {
    const uint64_t key = scratch.passed[threadIdx.x];
    int rank = 0;
#pragma unroll 4
    for (int i = 0; i < count; ++i) rank += scratch.passed[i] > key;
    if (rank < kListLength) scratch.top[rank] = key;
  }
  __syncthreads();
}

// The blocks of scratch.top's first top_k into scratch.blocks in ascending order, -1 at the tail. One warp
// calls it; other warps see the result after a barrier.
template <typename Scratch>
__device__ __forceinline__ void order_blocks(Scratch& scratch, int top_k) {
  const int lane = threadIdx.x % 32;
  const uint64_t key = lane < top_k ? scratch.top[lane] : 0;
  const int block = key != 0 ? block_of_key(key) : -1;
  if (lane < kListLength) scratch.blocks[lane] = block;
  __syncwarp();
  int rank = 0;  // -1 is the largest, and the lanes that have it are the last
#pragma unroll
  for (int i = 0; i < kListLength / 4; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(scratch.blocks)[i];
    const uint32_t mine = block;
    rank += (four.x < mine) + (four.y < mine) + (four.z < mine) + (four.w < mine);
  }
  __syncwarp();
  if (lane < kListLength) scratch.blocks[block >= 0 ? rank : lane] = block;
}

template <int kUnits>
__device__ __forceinline__ float block_score(const float* scores, int block) {
  if constexpr (kUnits == 4) {
    const float4 v = reinterpret_cast<const float4*>(scores)[block];
    return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
  } else if constexpr (kUnits == 2) {
    const float2 v = reinterpret_cast<const float2*>(scores)[block];
    return fmaxf(v.x, v.y);
  } else {
    return scores[block];
  }
}

// The keys of blocks `base` + thread, + threads, ...; all scores are on their way before one is used.
template <int kUnits, int kPerThread, int kKeys>
__device__ __forceinline__ void load_keys(uint64_t (&keys)[kKeys], const float* scores, int base,
                                          int position, const IndexSelection& selection) {
  const int own = position / kBlock, first = base + threadIdx.x;
  float best[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int block = first + i * static_cast<int>(blockDim.x);
    best[i] = block <= own ? block_score<kUnits>(scores, block) : kLowest;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i)
    keys[i] = make_key(best[i], first + i * static_cast<int>(blockDim.x), own, selection);
}

// The same of a share, whose `count` blocks are listed.
template <int kUnits, int kPerThread, int kKeys>
__device__ __forceinline__ void load_share_keys(uint64_t (&keys)[kKeys], const float* scores,
                                                const int32_t* blocks, int count, int base, int own,
                                                const IndexSelection& selection) {
  const int first = base + threadIdx.x;
  float best[kPerThread];
  int block[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int at = first + i * static_cast<int>(blockDim.x);
    best[i] = at < count ? block_score<kUnits>(scores, at) : kLowest;
    block[i] = at < count ? blocks[at] : INT32_MAX;
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) keys[i] = make_key(best[i], block[i], own, selection);
}

// ---- the kernel ----

template <int kUnits, int kNumWarps, int kBlocksPerThread>
struct IndexSelectTraits {
  static constexpr int kUnitsPerBlock = kUnits;
  static constexpr int kWarps = kNumWarps, kThreads = kWarps * 32, kPerThread = kBlocksPerThread;
  static constexpr int kRound = kThreads * kPerThread;  // blocks
  static_assert(kUnits == 1 || kUnits == 2 || kUnits == 4, "a block's unit scores are one vector");
  static_assert(kThreads >= SelectScratch<kWarps>::kPassed);
};

// One CTA per row, which takes all its blocks at once, or in rounds that hand on the best so far.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    index_select_kernel(const __grid_constant__ IndexSelectParams p) {
  __shared__ SelectScratch<T::kWarps> scratch;
  const int row = blockIdx.x, thread = threadIdx.x, top_k = p.selection.top_k;
  const IndexBatch& b = p.batch;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  const int position = rows.first_position + (row - rows.first_row) / b.heads;
  const int blocks = rows.rows > 0 ? position / kBlock + 1 : 0;
  const float* scores = p.scores + int64_t{row} * b.max_blocks * T::kUnitsPerBlock;
  int32_t* out = p.selected + int64_t{row} * top_k;
  // The CTAs of many rows' attention would pile up on the SMs that the scan leaves first.
  constexpr int kFewRows = 4;
  const bool few = gridDim.x <= kFewRows;
  if (few) hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();  // the metadata above is older than the kernel before
  if (!few) hopper::let_next_kernel_start();
  if (row == 0 && thread == 0 && p.counter != nullptr) *p.counter = 0;  // for the next scan
  if (blocks <= top_k) {
    if (thread < top_k) out[thread] = thread < blocks ? thread : -1;
    return;
  }
  uint64_t keys[T::kPerThread + 1];
  keys[T::kPerThread] = 0;
#pragma unroll 1
  for (int base = 0; base < blocks; base += T::kRound) {
    load_keys<T::kUnitsPerBlock, T::kPerThread>(keys, scores, base, position, p.selection);
    cta_largest(keys, scratch);
    if (thread < kListLength) keys[T::kPerThread] = scratch.top[thread];
  }
  if (thread >= 32) return;
  order_blocks(scratch, top_k);
  __syncwarp();
  if (thread < top_k) out[thread] = scratch.blocks[thread];
}

// One CTA per row: the best of a share's blocks, and none where every visible block has a place.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1)
    share_select_kernel(const __grid_constant__ IndexSelectParams p) {
  __shared__ SelectScratch<T::kWarps> scratch;
  const int row = blockIdx.x, thread = threadIdx.x;
  const IndexBatch& b = p.batch;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  const int own = (rows.first_position + (row - rows.first_row) / b.heads) / kBlock;
  const bool is_decided = rows.rows == 0 || own < p.selection.top_k;
  const int count = is_decided ? 0 : p.share.counts[request];
  const int32_t* blocks = p.share.blocks + int64_t{max(request, 0)} * b.max_blocks;
  const float* scores = p.scores + int64_t{row} * b.max_blocks * T::kUnitsPerBlock;
  hopper::wait_for_previous_kernel();  // the metadata above is older than the kernel before
  hopper::let_next_kernel_start();
  if (row == 0 && thread == 0 && p.counter != nullptr) *p.counter = 0;  // for the next scan
  uint64_t keys[T::kPerThread + 1];
  keys[T::kPerThread] = 0;
#pragma unroll 1
  for (int base = 0; base < count; base += T::kRound) {
    load_share_keys<T::kUnitsPerBlock, T::kPerThread>(keys, scores, blocks, count, base, own, p.selection);
    cta_largest(keys, scratch);
    if (thread < kListLength) keys[T::kPerThread] = scratch.top[thread];
  }
  if (thread < kListLength) p.candidates[int64_t{row} * kListLength + thread] = keys[T::kPerThread];
}

}  // namespace msa::sm90
