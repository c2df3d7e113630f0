// SPDX-License-Identifier: Apache-2.0
// The tile kernel: persistent CTAs take items (128 rows of queries x heads, a run of blocks). Two warpgroups
// hold 64 rows each and keep the softmax in registers; while one exponentiates, the other's products run, and
// within a warpgroup the values of one block are multiplied during the softmax of the next.
#pragma once

#include "msa/sm90/dense/dense_tile_feed.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace msa::sm90::dense {

enum TileBarrier { kWarpgroupBarrier = 1, kTurnBarrier = 3 };  // one for each consumer

template <typename Traits>
struct TileConsumer {
  const DenseParams& p;
  const TileWorkspace& ws;
  TileShared<Traits>& shared;
  int wg, warp, lane;  // warp within the warpgroup
  int shift;           // log2 of the group
  int count = 0;       // tiles of K or V used so far

  float max[2], sum[2];  // of rows lane / 4 and eight further: raw scores; this thread's columns only
  float scale_log2[2];

  __device__ void wait_full(int at) const {
    hopper::mbarrier_wait(&shared.full[at % Traits::kSlots], at / Traits::kSlots & 1);
  }
  __device__ void release(int at) const {
    if (lane == 0) hopper::mbarrier_arrive(&shared.empty[at % Traits::kSlots]);
  }

  __device__ void issue_scores(int q_slot, int at, float (&s)[64]) const {
    constexpr int kHalfBytes = sizeof(typename TileShared<Traits>::Half);
    // Offsets within a tile never carry out of a descriptor's address field, so one sum makes each.
    const uint64_t a = hopper::wgmma_descriptor(&shared.q[q_slot][0][64 * wg]);
    const uint64_t b = hopper::wgmma_descriptor(&shared.kv[at % Traits::kSlots]);
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int offset = (step / 4 * kHalfBytes + step % 4 * 32) / 16;
      if constexpr (Traits::kFp8)
        hopper::wgmma_f16<128>(s, a + offset, b + offset, step > 0);
      else
        hopper::wgmma<128>(s, a + offset, b + offset, step > 0);
    }
    hopper::wgmma_commit();
  }

  __device__ void issue_values(int at, const uint32_t (&a)[8][4], float (&o)[64], int accumulate) const {
    const uint64_t b = hopper::wgmma_descriptor(&shared.kv[at % Traits::kSlots],
                                                static_cast<uint32_t>(sizeof(shared.kv[0][0])));
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const int more = step > 0 ? 1 : accumulate;
      if constexpr (Traits::kFp8)
        hopper::wgmma_f16<128, 1>(o, a[step], b + step * 2048 / 16, more);
      else
        hopper::wgmma<128, 1>(o, a[step], b + step * 2048 / 16, more);
    }
    hopper::wgmma_commit();
  }

  // Keys of `block` after the query's own position are not there.
  __device__ void mask(float (&s)[64], const TileItem& item, int block) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 64 * wg + 16 * warp + lane / 4 + 8 * h;
      const int limit = item.position + (row >> shift) - block * kBlock - 2 * (lane % 4);
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e > limit) s[4 * j + 2 * h + e] = -INFINITY;
    }
  }

  // Scores to exponentials relative to the new maximum, in place; the factors for what was summed before.
  template <bool kMasked>
  __device__ void softmax(float (&s)[64], float (&correction)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float best[2] = {s[2 * h], s[2 * h + 1]};
#pragma unroll
      for (int j = 1; j < 16; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) best[e] = fmaxf(best[e], s[4 * j + 2 * h + e]);
      float top = fmaxf(best[0], best[1]);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(max[h], fmaxf(top, __shfl_xor_sync(~0u, top, 2)));
      float base = top * scale_log2[h];
      if (kMasked && top == -INFINITY) base = 0;  // the row sees nothing of these blocks
      correction[h] = exp2_fast(fmaf(max[h], scale_log2[h], -base));
      max[h] = top;
      float total[2] = {};
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[4 * j + 2 * h + e];
          x = exp2_fast(fmaf(x, scale_log2[h], -base));
          total[e] += x;
        }
      sum[h] = fmaf(sum[h], correction[h], total[0] + total[1]);
    }
  }

  __device__ static void to_fragments(const float (&s)[64], uint32_t (&a)[8][4]) {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float low = s[4 * j + 2 * h], high = s[4 * j + 2 * h + 1];
        a[j / 2][j % 2 * 2 + h] = pack_pair<Traits::kFp8>(low, high);
      }
  }

  // Unwritten keys may hold NaN, and 0 * NaN is NaN. Both warpgroups write the same zeros, so they need not
  // agree on who does.
  __device__ void clear_unwritten(int at, int written) const {
    wait_full(at);
    auto& tile = shared.kv[at % Traits::kSlots];
    for (int i = written * 8 + warp * 32 + lane; i < kBlock * 8; i += 128)
      for (int h = 0; h < 2; ++h) reinterpret_cast<uint4*>(tile[h])[i] = make_uint4(0, 0, 0, 0);
    hopper::fence_async_shared();
    hopper::named_barrier_sync(kWarpgroupBarrier + wg, 128);
  }

  // The scores of the next block while the values of the one before are multiplied. The warpgroups take
  // turns to issue.
  template <bool kMasked>
  __device__ void step(const TileItem& item, int q_slot, int block, bool alone, bool last, float (&o)[64],
                       uint32_t (&a)[8][4], int accumulate) {
    const int keys = count, values = count + 1;
    count += 2;
    float s[64];
    wait_full(keys);
    if (!alone) hopper::named_barrier_sync(kTurnBarrier + wg, 256);
    issue_scores(q_slot, keys, s);
    wait_full(values);
    issue_values(values, a, o, accumulate);
    if (!alone) hopper::named_barrier_arrive(kTurnBarrier + (wg ^ 1), 256);
    hopper::wgmma_wait<1>();
    hopper::wgmma_pin(s);
    release(keys);
    if (last && lane == 0) hopper::mbarrier_arrive(&shared.q_empty[q_slot]);
    if constexpr (kMasked) mask(s, item, block);
    float correction[2];
    softmax<kMasked>(s, correction);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(o);
    release(values);
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] *= correction[i / 2 % 2];
    to_fragments(s, a);
  }

  // This warpgroup's rows of q to f16, in place; two threads to a row.
  __device__ void convert_queries(int q_slot) {
    const int row = 64 * wg + 16 * warp + lane / 2;
    uint4* pieces = reinterpret_cast<uint4*>(shared.q[q_slot][lane % 2][row]);
    uint32_t largest = 0;
    for (int i = 0; i < 8; ++i) {
      const uint4 x = pieces[i];
      largest = largest_of(largest_of(largest_of(largest_of(largest, x.x), x.y), x.z), x.w);
    }
    largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 1));
    const RowScale scale = scale_row(largest);
    for (int i = 0; i < 8; ++i) {
      const uint4 x = pieces[i];
      pieces[i] = make_uint4(bf16_to_f16(x.x, scale.factor), bf16_to_f16(x.y, scale.factor),
                             bf16_to_f16(x.z, scale.factor), bf16_to_f16(x.w, scale.factor));
    }
    if (lane % 2 == 0) shared.row_scale[q_slot][row] = scale.inverse;
    hopper::fence_async_shared();
    hopper::named_barrier_sync(kWarpgroupBarrier + wg, 128);
    for (int h = 0; h < 2; ++h)
      scale_log2[h] *= shared.row_scale[q_slot][64 * wg + 16 * warp + lane / 4 + 8 * h];
  }

  __device__ void attend(const TileItem& item, int q_slot, bool alone, float (&o)[64]) {
    uint32_t a[8][4];
    int block = item.first_block + item.blocks - 1;
    const int first_keys = count++;
    {
      float s[64];
      wait_full(first_keys);
      issue_scores(q_slot, first_keys, s);
      hopper::wgmma_wait<0>();
      hopper::wgmma_pin(s);
      release(first_keys);
      if (item.blocks == 1 && lane == 0) hopper::mbarrier_arrive(&shared.q_empty[q_slot]);
      mask(s, item, block);
      float correction[2];
      softmax<true>(s, correction);
      to_fragments(s, a);
    }
    if (item.written < kBlock)
      clear_unwritten(item.blocks > 1 ? first_keys + 2 : first_keys + 1, item.written);
    int left = item.blocks - 1, accumulate = 0;
    // A tile's queries lie in at most two blocks.
    if (left > 0 && block * kBlock > item.position) {
      step<true>(item, q_slot, --block, alone, left == 1, o, a, accumulate);
      --left, accumulate = 1;
    }
    for (; left > 0; --left, accumulate = 1)
      step<false>(item, q_slot, --block, alone, left == 1, o, a, accumulate);
    const int values = count++;
    wait_full(values);
    issue_values(values, a, o, accumulate);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(o);
    release(values);
  }

  __device__ void store(const TileItem& item, const float (&o)[64]) {
    char* base = static_cast<char*>(p.workspace);
    const float v_scale = value_scale(p, item.head);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = 64 * wg + 16 * warp + lane / 4 + 8 * h, query = row >> shift;
      float total = sum[h];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      if (query >= item.queries) continue;
      if (item.partial >= 0) {
        const int64_t at = int64_t{item.partial} * kTileRows + row;
        if (lane % 4 == 0)
          reinterpret_cast<float2*>(base + ws.sums)[at] = make_float2(max[h] * scale_log2[h], total);
        float2* out = reinterpret_cast<float2*>(base + ws.partial) + at * (kDim / 2) + lane % 4;
#pragma unroll
        for (int j = 0; j < 16; ++j)
          out[4 * j] = make_float2(o[4 * j + 2 * h] * v_scale, o[4 * j + 2 * h + 1] * v_scale);
      } else {
        const float scale = total > 0 ? v_scale / total : 0;
        const int64_t at =
            (int64_t{item.first_query + query} * p.kv_heads + item.head) * p.group + (row & (p.group - 1));
        uint32_t* out = reinterpret_cast<uint32_t*>(p.out) + at * (kDim / 2) + lane % 4;
#pragma unroll
        for (int j = 0; j < 16; ++j)
          out[4 * j] = pack_pair<false>(o[4 * j + 2 * h] * scale, o[4 * j + 2 * h + 1] * scale);
      }
    }
  }

  // Tiles of at most 64 rows leave the second warpgroup nothing to do.
  __device__ void pass(const TileItem& item, int q_slot) {
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&shared.q_empty[q_slot]);
    for (int i = 0; i < 2 * item.blocks; ++i, ++count) {
      wait_full(count);
      release(count);
    }
  }

  __device__ void consume() {
    if (wg == 1) hopper::named_barrier_arrive(kTurnBarrier, 256);  // the first turn
    for (int round = 0;; ++round) {
      const int q_slot = round % Traits::kQuerySlots;
      hopper::mbarrier_wait(&shared.q_full[q_slot], round / Traits::kQuerySlots & 1);
      const TileItem item = shared.item[q_slot];
      if (item.queries < 0) return;
      const bool alone = item.queries << shift <= 64;
      if (alone && wg == 1) {
        pass(item, q_slot);
        continue;
      }
      scale_log2[0] = scale_log2[1] = p.scale * kLog2e * key_scale(p, item.head);
      max[0] = max[1] = -INFINITY, sum[0] = sum[1] = 0;
      float o[64];
      if (item.blocks > 0) {
        if constexpr (Traits::kFp8) convert_queries(q_slot);
        attend(item, q_slot, alone, o);
      } else {
        __syncwarp();
        if (lane == 0) hopper::mbarrier_arrive(&shared.q_empty[q_slot]);
#pragma unroll
        for (int i = 0; i < 64; ++i) o[i] = 0;
      }
      store(item, o);
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    tile_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ TileWorkspace ws,
                const __grid_constant__ TileMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<TileShared<Traits>*>(shared_bytes);
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  constexpr int kConsumerWarps = 4 * Traits::kConsumers;
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&maps.q), hopper::prefetch_tensor_map(&maps.kv);
    for (int s = 0; s < Traits::kSlots; ++s) {
      hopper::mbarrier_init(&shared.full[s], Traits::kFp8 ? Traits::kWideningWarps : 1);
      hopper::mbarrier_init(&shared.empty[s], kConsumerWarps);
    }
    for (int s = 0; s < Traits::kQuerySlots; ++s)
      hopper::mbarrier_init(&shared.q_full[s], 1), hopper::mbarrier_init(&shared.q_empty[s], kConsumerWarps);
    for (int s = 0; s < Traits::kRawSlots; ++s)
      shared.no_more[s] = 0, hopper::mbarrier_init(&shared.raw_full[s], 1),
      hopper::mbarrier_init(&shared.raw_empty[s], Traits::kWideningWarps);
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();
  if (wg == 0) {
    hopper::shrink_registers<Traits::kProducerRegisters>();
    TileProducer<Traits> producer = {p, ws, maps, shared, lane};
    if (warp == 0)
      producer.produce();
    else if constexpr (Traits::kFp8)
      producer.widen(static_cast<int>(threadIdx.x) - 32);
  } else {
    hopper::grow_registers<Traits::kConsumerRegisters>();
    TileConsumer<Traits>{p, ws, shared, wg - 1, warp, lane, 31 - __clz(p.group)}.consume();
  }
}

}  // namespace msa::sm90::dense
