// SPDX-License-Identifier: Apache-2.0
// The kernel: persistent CTAs take items. A warp feeds keys and values in tiles of 128; two warpgroups hold
// 64 rows of queries each and keep the softmax in registers. While one exponentiates, the other's products
// run, and within a warpgroup the values of one tile are multiplied during the softmax of the next.
#pragma once

#include "ops/cuda/vision/attend.h"
#include "ops/cuda/vision/tiles.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"
#include "sm90/wgmma_wide.cuh"

namespace sparrow::ops::cuda {

struct AttendTraits {
  static constexpr int kDim = kTowerHeadDim, kPieces = kDim / kPieceChannels, kKeys = 128, kRows = kItemRows;
  static constexpr int kConsumers = 2, kThreads = 128 * (kConsumers + 1), kMinCtasPerSm = 1;
  static constexpr int kSlots = 8, kQuerySlots = 2;
  static constexpr int kPieceBytes = kKeys * kPieceRowBytes, kTileBytes = kPieces * kPieceBytes;
  static constexpr int kScores = kKeys / 2, kSums = kDim / 2, kSteps = kKeys / 16;  // steps of values
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kDim % kPieceChannels == 0 && kRows == kKeys, "queries and keys have tiles of one shape");
};

struct AttendShared {
  using T = AttendTraits;
  alignas(1024) uint8_t kv[T::kSlots][T::kTileBytes];  // in the order of use: K0, K1, V0, K2, V1, ...
  uint8_t q[T::kQuerySlots][T::kTileBytes];
  SegmentItem item[T::kQuerySlots];  // of each place of q
  uint64_t full[T::kSlots], empty[T::kSlots];
  uint64_t q_full[T::kQuerySlots], q_empty[T::kQuerySlots];
};

enum AttendBarrier { kTurnBarrier = 1 };  // one for each consumer

__device__ __forceinline__ int key_tiles(const SegmentItem& item) {
  return (item.end - item.begin + AttendTraits::kKeys - 1) / AttendTraits::kKeys;
}

struct AttendProducer {
  using T = AttendTraits;
  const AttendSegmentsArgs& p;
  const CUtensorMap& map;
  AttendShared& shared;
  int count = 0;  // tiles of K or V sent so far

  // Which of q, k and v, and from which row on.
  __device__ void load(void* to, uint64_t* full, const SegmentItem& item, int which, int row) const {
    hopper::mbarrier_arrive_expect(full, T::kTileBytes);
    hopper::tma_load_3d(to, &map, full, 0, row / 4, (which * p.num_heads + item.head) * T::kPieces);
  }
  __device__ void send(const SegmentItem& item, int which, int tile) {
    const int slot = count % T::kSlots;
    hopper::mbarrier_wait(&shared.empty[slot], (count / T::kSlots & 1) ^ 1);
    load(shared.kv[slot], &shared.full[slot], item, which, item.begin + tile * T::kKeys);
    ++count;
  }

  // Tiles go from the last to the first: the one that needs a mask comes first.
  __device__ void produce() {
    int round = 0;
    for (int i = blockIdx.x;; i += static_cast<int>(gridDim.x), ++round) {
      const int slot = round % T::kQuerySlots;
      hopper::mbarrier_wait(&shared.q_empty[slot], (round / T::kQuerySlots & 1) ^ 1);
      if (i >= p.num_items) {
        shared.item[slot].rows = 0;
        hopper::mbarrier_arrive(&shared.q_full[slot]);
        return;
      }
      const SegmentItem item = p.items[i];
      shared.item[slot] = item;
      load(shared.q[slot], &shared.q_full[slot], item, 0, item.row);
      const int tiles = key_tiles(item);
      for (int tile = tiles - 1; tile >= 0; --tile) {
        send(item, 1, tile);
        if (tile < tiles - 1) send(item, 2, tile + 1);
      }
      send(item, 2, 0);
    }
  }
};

struct AttendConsumer {
  using T = AttendTraits;
  const AttendSegmentsArgs& p;
  AttendShared& shared;
  int wg, warp, lane;  // warp within the warpgroup
  float scale_log2;
  int count = 0;         // tiles of K or V used so far
  float max[2], sum[2];  // of rows lane / 4 and eight further: raw scores; this thread's columns only

  __device__ void wait_full(int at) const {
    hopper::mbarrier_wait(&shared.full[at % T::kSlots], at / T::kSlots & 1);
  }
  __device__ void release(int at) const {
    if (lane == 0) hopper::mbarrier_arrive(&shared.empty[at % T::kSlots]);
  }
  __device__ void release_queries(int q_slot) const {
    if (lane == 0) hopper::mbarrier_arrive(&shared.q_empty[q_slot]);
  }

  __device__ void issue_scores(int q_slot, int at, float (&s)[T::kScores]) const {
    const uint64_t a = hopper::wgmma_descriptor_narrow(shared.q[q_slot] + wg * T::kPieceBytes / 2);
    const uint64_t b = hopper::wgmma_descriptor_narrow(shared.kv[at % T::kSlots]);
    hopper::wgmma_fence();
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
      hopper::wgmma<T::kKeys>(s, a + piece * T::kPieceBytes / 16, b + piece * T::kPieceBytes / 16, piece > 0);
    hopper::wgmma_commit();
  }

  __device__ void issue_values(int at, const uint32_t (&a)[T::kSteps][4], float (&o)[T::kSums],
                               int accumulate) const {
    const uint64_t b = hopper::wgmma_descriptor_narrow(shared.kv[at % T::kSlots], T::kPieceBytes);
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < T::kSteps; ++step)
      hopper::wgmma<T::kDim, 1>(o, a[step], b + step * 16 * kPieceRowBytes / 16, step > 0 ? 1 : accumulate);
    hopper::wgmma_commit();
  }

  // The first `keys` are there.
  __device__ void mask(float (&s)[T::kScores], int keys) const {
    const int limit = keys - 2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < T::kScores; ++i)
      if (i / 4 * 8 + i % 2 >= limit) s[i] = -INFINITY;
  }

  // Scores to exponentials relative to the new maximum, in place; the factors for what was summed before.
  __device__ void softmax(float (&s)[T::kScores], float (&correction)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float best[2] = {s[2 * h], s[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < T::kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) best[e] = fmaxf(best[e], s[4 * j + 2 * h + e]);
      float top = fmaxf(best[0], best[1]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(max[h], fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
      const float base = top * scale_log2;
      correction[h] = exp2_fast(fmaf(max[h], scale_log2, -base));
      max[h] = top;
      float total[2] = {};
#pragma unroll
      for (int j = 0; j < T::kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * h + e];
          x = exp2_fast(fmaf(x, scale_log2, -base));
          total[e] += x;
        }
      sum[h] = fmaf(sum[h], correction[h], total[0] + total[1]);
    }
  }

  __device__ static void to_fragments(const float (&s)[T::kScores], uint32_t (&a)[T::kSteps][4]) {
#pragma unroll
    for (int j = 0; j < T::kKeys / 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) a[j / 2][j % 2 * 2 + h] = pack_bf16(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]);
  }

  // The scores of the next tile while the values of the one before are multiplied. The warpgroups take turns
  // to issue.
  __device__ void step(int q_slot, bool alone, bool last, float (&o)[T::kSums], uint32_t (&a)[T::kSteps][4],
                       int accumulate) {
    const int keys = count, values = count + 1;
    count += 2;
    float s[T::kScores];
    wait_full(keys);
    if (!alone) hopper::named_barrier_sync(kTurnBarrier + wg, 256);
    issue_scores(q_slot, keys, s);
    wait_full(values);
    issue_values(values, a, o, accumulate);
    if (!alone) hopper::named_barrier_arrive(kTurnBarrier + (wg ^ 1), 256);
    hopper::wgmma_wait<1>();
    hopper::wgmma_pin(s);
    release(keys);
    if (last) release_queries(q_slot);
    float correction[2];
    softmax(s, correction);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(o);
    release(values);
#pragma unroll
    for (int i = 0; i < T::kSums; ++i) o[i] *= correction[i / 2 % 2];
    to_fragments(s, a);
  }

  __device__ void attend(const SegmentItem& item, int q_slot, bool alone, float (&o)[T::kSums]) {
    uint32_t a[T::kSteps][4];
    const int tiles = key_tiles(item), first_keys = count++;
    max[0] = max[1] = -INFINITY, sum[0] = sum[1] = 0;
    {
      float s[T::kScores];
      wait_full(first_keys);
      issue_scores(q_slot, first_keys, s);
      hopper::wgmma_wait<0>();
      hopper::wgmma_pin(s);
      release(first_keys);
      if (tiles == 1) release_queries(q_slot);
      mask(s, item.end - item.begin - (tiles - 1) * T::kKeys);
      float correction[2];
      softmax(s, correction);
      to_fragments(s, a);
    }
    int accumulate = 0;
    for (int left = tiles - 1; left > 0; --left, accumulate = 1)
      step(q_slot, alone, left == 1, o, a, accumulate);
    const int values = count++;
    wait_full(values);
    issue_values(values, a, o, accumulate);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(o);
    release(values);
  }

  __device__ void store(const SegmentItem& item, const float (&o)[T::kSums]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = item.row + 64 * wg + 16 * warp + lane / 4 + 8 * h;
      float total = sum[h];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      if (row >= item.end) continue;
      const float scale = 1.0f / total;
      auto* out =
          reinterpret_cast<uint32_t*>(p.out + (int64_t{row} * p.num_heads + item.head) * T::kDim) + lane % 4;
#pragma unroll
      for (int j = 0; j < T::kDim / 8; ++j)
        out[4 * j] = pack_bf16(o[4 * j + 2 * h] * scale, o[4 * j + 2 * h + 1] * scale);
    }
  }

  // Items of at most 64 rows leave the second warpgroup nothing to do.
  __device__ void pass(const SegmentItem& item, int q_slot) {
    release_queries(q_slot);
    for (int i = 0; i < 2 * key_tiles(item); ++i, ++count) {
      wait_full(count);
      release(count);
    }
  }

  __device__ void consume() {
    if (wg == 1) hopper::named_barrier_arrive(kTurnBarrier, 256);  // the first turn
    for (int round = 0;; ++round) {
      const int q_slot = round % T::kQuerySlots;
      hopper::mbarrier_wait(&shared.q_full[q_slot], round / T::kQuerySlots & 1);
      const SegmentItem item = shared.item[q_slot];
      if (item.rows == 0) return;
      const bool alone = item.rows <= kHalfItemRows;
      __syncwarp();  // nobody's item is overwritten before all lanes have it
      if (alone && wg == 1) {
        pass(item, q_slot);
        continue;
      }
      float o[T::kSums];
      attend(item, q_slot, alone, o);
      store(item, o);
    }
  }
};

// A template so that its code is in one object.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kMinCtasPerSm)
    attend_segments_kernel(const __grid_constant__ AttendSegmentsArgs p,
                           const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<AttendShared*>(shared_bytes);
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  constexpr int kConsumerWarps = 4 * T::kConsumers;
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&map);
    for (int s = 0; s < T::kSlots; ++s)
      hopper::mbarrier_init(&shared.full[s], 1), hopper::mbarrier_init(&shared.empty[s], kConsumerWarps);
    for (int s = 0; s < T::kQuerySlots; ++s)
      hopper::mbarrier_init(&shared.q_full[s], 1), hopper::mbarrier_init(&shared.q_empty[s], kConsumerWarps);
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();
  if (wg == 0) {
    hopper::shrink_registers<T::kProducerRegisters>();
    if (threadIdx.x == 0) AttendProducer{p, map, shared}.produce();
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    AttendConsumer{p, shared, wg - 1, warp, lane, p.scale * 1.44269504f}.consume();
  }
}

}  // namespace sparrow::ops::cuda
