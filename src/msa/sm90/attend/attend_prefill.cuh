// SPDX-License-Identifier: Apache-2.0
// The block-outer attend kernel: persistent CTAs take work items (a block and queries that chose it). Four
// warps feed shared memory; three warpgroups each turn tiles of 64 rows (query x head of the group) into
// partial results. Partials go from registers straight to memory in the order of the accumulators: a warp's
// store is contiguous, without shuffles.
#pragma once

#include "msa/sm90/attend/attend_prefill_feed.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace msa::sm90 {

// A warpgroup's arithmetic on one tile.
template <typename Traits>
struct PrefillConsumer {
  const AttendPrefillParams& p;
  const AttendPrefillWorkspace& ws;
  AttendPrefillShared<Traits>& shared;
  int wg, warp, lane;  // warp within the warpgroup

  // Groups of eight rows of Q are 2048 bytes apart, the other half of the channels between them.
  static constexpr uint64_t kGroupStrideOfQ = uint64_t{(2048 - 1024) >> 4} << 32;

  __device__ void issue_scores(int q_stage, int kv_stage, float (&s)[64]) const {
    // Offsets within a tile never carry out of a descriptor's address field, so one sum makes each.
    const uint64_t a = hopper::wgmma_descriptor(&shared.q[wg][q_stage]) + kGroupStrideOfQ;
    const uint64_t b = hopper::wgmma_descriptor(&shared.k[kv_stage]);
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step)
      hopper::wgmma<128>(s, a + (step / 4 * 1024 + step % 4 * 32) / 16,
                         b + (step / 4 * static_cast<int>(sizeof(shared.k[0][0])) + step % 4 * 32) / 16,
                         step > 0);
    hopper::wgmma_commit();
  }

  // Keys past `limit` are not there for the row (h = 0: rows lane / 4, 1: eight further).
  __device__ void mask(float (&s)[64], int h, int limit) const {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * j + 2 * (lane % 4) + e > limit) s[4 * j + 2 * h + e] = -INFINITY;
  }

  // Scores to 16-bit exponentials relative to each row's maximum, in the fragments of A; maxima (log2) and
  // sums of both rows.
  __device__ void softmax(float (&s)[64], float scale_log2, uint32_t (&a)[8][4], float (&top)[2],
                          float (&sum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < 16; ++j)
        best[j % 2] = fmaxf(best[j % 2], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      float both = fmaxf(best[0], best[1]);
      both = fmaxf(both, __shfl_xor_sync(~0u, both, 1));
      both = fmaxf(both, __shfl_xor_sync(~0u, both, 2));
      top[h] = both * scale_log2;
    }
    float total[2][2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float e0 = exp2_fast(fmaf(s[4 * j + 2 * h], scale_log2, -top[h]));
        const float e1 = exp2_fast(fmaf(s[4 * j + 2 * h + 1], scale_log2, -top[h]));
        total[h][0] += e0, total[h][1] += e1;
        a[j / 2][j % 2 * 2 + h] = pack_pair<Traits::kFp8>(e0, e1);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = total[h][0] + total[h][1];
      sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
    }
  }

  // The layout of a partial is told in combine.cuh. `h` tells which of this thread's two rows. Not
  // normalised: the sum goes along.
  __device__ void store(const float (&o)[64], int h, int partial, float top, float sum) const {
    if (partial < 0) return;
    char* base = static_cast<char*>(p.workspace);
    const int64_t at = int64_t{partial} * Traits::kGroup;
    constexpr int kLanes = Traits::kGroup >= 8 ? 32 : 16;  // that hold the query's rows of this h
    const int half = Traits::kGroup == 16 ? h : 0, row_head = lane % kLanes / 4 + 8 * half;
    if (lane % 4 == 0) reinterpret_cast<float2*>(base + ws.sums)[at + row_head] = make_float2(top, sum);
    uint4* out =
        reinterpret_cast<uint4*>(base + ws.partial) + at * (Traits::kDim / 8) + half * 128 + lane % kLanes;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = 4 * (4 * i + j) + 2 * h;
        const __nv_bfloat162 pair = __floats2bfloat162_rn(o[d], o[d + 1]);
        words[j] = *reinterpret_cast<const uint32_t*>(&pair);
      }
      out[kLanes * i] = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

  // Unwritten keys may hold NaN, and 0 * NaN is NaN. All warpgroups write the same zeros, so they need not
  // agree on who does.
  __device__ void clear_unwritten(int kv_stage, int visible) const {
    for (int i = visible * 8 + warp * 32 + lane; i < Traits::kBlock * 8; i += 128)
      for (int h = 0; h < 2; ++h) reinterpret_cast<uint4*>(shared.v[kv_stage][h])[i] = make_uint4(0, 0, 0, 0);
    hopper::fence_async_shared();
    hopper::named_barrier_sync(1 + wg, 128);
  }

  __device__ void attend() {
    for (int round = 0;; ++round) {
      const int stage = round % Traits::kQStages;
      hopper::mbarrier_wait(&shared.q_full[wg][stage], round / Traits::kQStages & 1);
      const PrefillTile& tile = shared.tile[wg][stage];
      const int kv_stage = tile.kv_stage, kv_parity = tile.kv_parity, last = tile.last,
                visible = tile.visible;
      const float scale_log2 = tile.scale_log2;
      if (kv_stage < 0) return;
      const int first = (warp * 16 + lane / 4) / Traits::kGroup,
                second = (warp * 16 + lane / 4 + 8) / Traits::kGroup;
      const int partial[2] = {tile.partial[first], tile.partial[second]};
      const int limit[2] = {tile.limit[first], tile.limit[second]};
      hopper::mbarrier_wait(&shared.k_full[kv_stage], kv_parity);
      float s[64];
      issue_scores(stage, kv_stage, s);
      hopper::wgmma_wait<0>();
      hopper::wgmma_pin(s);
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&shared.q_empty[wg][stage]);
      if (__any_sync(~0u, min(limit[0], limit[1]) < Traits::kBlock - 1))
        mask(s, 0, limit[0]), mask(s, 1, limit[1]);
      uint32_t a[8][4];
      float top[2], sum[2];
      softmax(s, scale_log2, a, top, sum);
      hopper::mbarrier_wait(&shared.v_full[kv_stage], kv_parity);
      if (visible < Traits::kBlock) clear_unwritten(kv_stage, visible);
      float o[64];
      issue_value_products<Traits::kFp8>(o, a, &shared.v[kv_stage], sizeof(shared.v[0][0]), false);
      hopper::wgmma_wait<0>();
      hopper::wgmma_pin(o);
      __syncwarp();
      if (last && lane == 0) hopper::mbarrier_arrive(&shared.kv_empty[kv_stage]);
      store(o, 0, partial[0], top[0], sum[0]);
      store(o, 1, partial[1], top[1], sum[1]);
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    attend_prefill_kernel(const __grid_constant__ AttendPrefillParams p,
                          const __grid_constant__ AttendPrefillWorkspace ws,
                          const __grid_constant__ PrefillMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<AttendPrefillShared<Traits>*>(shared_bytes);
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Traits::kKvStages; ++s) {
      const int fillers = Traits::kFp8 ? Traits::kConsumers : 1;
      hopper::mbarrier_init(&shared.k_full[s], fillers), hopper::mbarrier_init(&shared.v_full[s], fillers);
      hopper::mbarrier_init(&shared.raw_full[s][0], 1), hopper::mbarrier_init(&shared.raw_full[s][1], 1);
      hopper::mbarrier_init(&shared.item_full[s], 1),
          hopper::mbarrier_init(&shared.item_empty[s], Traits::kConsumers);
      hopper::mbarrier_init(&shared.kv_empty[s], 4 * Traits::kConsumers);
    }
    for (int c = 0; c < Traits::kConsumers; ++c)
      for (int s = 0; s < Traits::kQStages; ++s)
        hopper::mbarrier_init(&shared.q_full[c][s], 1), hopper::mbarrier_init(&shared.q_empty[c][s], 4);
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  // No wait here: each CTA of the union kernel before this one let it start after a wait of its own, so all
  // but that kernel is over, and nothing here reads what that kernel writes. The scheduler waits at its end
  // instead, so that whoever waits for this kernel waits for both.
  hopper::let_next_kernel_start();
  if (wg == 0) {
    hopper::shrink_registers<Traits::kProducerRegisters>();
    PrefillProducer<Traits> producer = {p, ws, maps, shared, lane};
    if (warp == Traits::kConsumers) {
      producer.schedule();
      hopper::wait_for_previous_kernel();
    } else {
      producer.feed(warp);
    }
  } else {
    hopper::grow_registers<Traits::kConsumerRegisters>();
    PrefillConsumer<Traits>{p, ws, shared, wg - 1, warp, lane}.attend();
  }
}

}  // namespace msa::sm90
