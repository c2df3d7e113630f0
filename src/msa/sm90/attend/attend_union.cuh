// SPDX-License-Identifier: Apache-2.0
// The query-tile kernel: persistent CTAs take tiles of neighbouring queries and walk the union of their
// selections once, in ascending order, with a running maximum. K and V go round a ring that runs on from tile
// to tile; three warpgroups each own 64 rows (query x head of the group) and pass over blocks that none of
// their queries chose. A row that did not choose a block keeps its state to the bit (the correction is 1, the
// probabilities are 0), so its result does not depend on its neighbours.
#pragma once

#include "msa/sm90/attend/attend_union_feed.cuh"
#include "sm90/convert.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace msa::sm90 {

// A warpgroup's arithmetic.
template <typename Traits>
struct UnionConsumer {
  const AttendPrefillParams& p;
  const PrefillMaps& maps;
  AttendUnionShared<Traits>& shared;
  int wg, warp, lane;  // warp within the warpgroup
  RingCursor<Traits::kRing> cursor;
  float scale_log2;      // of the scores
  float top[2], sum[2];  // running maximum (log2), and this thread's part of the sum, of its two rows

  // Groups of eight rows of Q are 2048 bytes apart, the other half of the channels between them.
  static constexpr uint64_t kGroupStrideOfQ = uint64_t{(2048 - 1024) >> 4} << 32;

  __device__ void issue_scores(float (&s)[64]) const {
    const uint64_t a = hopper::wgmma_descriptor(&shared.q[wg]) + kGroupStrideOfQ;
    const uint64_t b = hopper::wgmma_descriptor(&shared.ring[cursor.slot]);
    hopper::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint64_t a_step = a + (step / 4 * 1024 + step % 4 * 32) / 16;
      const uint64_t b_step =
          b + (step / 4 * static_cast<int>(sizeof(shared.ring[0][0])) + step % 4 * 32) / 16;
      if constexpr (Traits::kFp8)
        hopper::wgmma_f16<128>(s, a_step, b_step, step > 0);
      else
        hopper::wgmma<128>(s, a_step, b_step, step > 0);
    }
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

  // Scores to 16-bit exponentials relative to each row's running maximum, in the fragments of A; output and
  // sums so far follow the maximum.
  __device__ void softmax(float (&s)[64], uint32_t (&a)[8][4], float (&o)[64]) {
    float base[2], correction[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float best[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < 16; ++j)
        best[j % 2] = fmaxf(best[j % 2], fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
      float both = fmaxf(best[0], best[1]);
      both = fmaxf(both, __shfl_xor_sync(~0u, both, 1));
      both = fmaxf(both, __shfl_xor_sync(~0u, both, 2));
      const float now = fmaxf(top[h], both * scale_log2);
      base[h] = now == -INFINITY ? 0 : now;  // a row that has chosen nothing yet
      correction[h] = exp2_fast(top[h] - base[h]);
      top[h] = now;
    }
    if (__any_sync(~0u, correction[0] != 1 || correction[1] != 1)) {
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] *= correction[i / 2 % 2];
      sum[0] *= correction[0], sum[1] *= correction[1];
    }
    float total[2][2] = {};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float e0 = exp2_fast(fmaf(s[4 * j + 2 * h], scale_log2, -base[h]));
        const float e1 = exp2_fast(fmaf(s[4 * j + 2 * h + 1], scale_log2, -base[h]));
        total[h][0] += e0, total[h][1] += e1;
        a[j / 2][j % 2 * 2 + h] = pack_pair<Traits::kFp8>(e0, e1);
      }
    }
    sum[0] += total[0][0] + total[0][1], sum[1] += total[1][0] + total[1][1];
  }

  // Unwritten keys may hold NaN, and 0 * NaN is NaN. All warpgroups write the same zeros, so they need not
  // agree on who does.
  __device__ void clear_unwritten(int visible) const {
    for (int i = visible * 8 + warp * 32 + lane; i < Traits::kBlock * 8; i += 128)
      for (int h = 0; h < 2; ++h)
        reinterpret_cast<uint4*>(shared.ring[cursor.slot][h])[i] = make_uint4(0, 0, 0, 0);
    hopper::fence_async_shared();
    hopper::named_barrier_sync(1 + wg, 128);
  }

  __device__ void release_slot() {
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&shared.ring_empty[cursor.slot]);
    cursor.advance();
  }

  // One block; `position` is that of the warpgroup's first query.
  __device__ void walk(int position, int seq_len, float (&o)[64]) {
    hopper::mbarrier_wait(&shared.ring_full[cursor.slot], cursor.parity);
    const UnionBlock& block = shared.block[cursor.slot];
    const int first_key = block.first_key;
    const uint32_t chosen = block.mask[wg / 2] >> wg % 2 * 16 & 0xffff;
    if (chosen == 0) {
      release_slot();
      // V's slot may still belong to an earlier block until its copy has landed.
      hopper::mbarrier_wait(&shared.ring_full[cursor.slot], cursor.parity);
      return release_slot();
    }
    float s[64];
    issue_scores(s);
    int limit[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int query = (warp * 16 + lane / 4 + 8 * h) / Traits::kGroup;
      limit[h] = chosen >> query & 1 ? position + query - first_key : -1;
    }
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(s);
    release_slot();
    if (__any_sync(~0u, min(limit[0], limit[1]) < Traits::kBlock - 1))
      mask(s, 0, limit[0]), mask(s, 1, limit[1]);
    uint32_t a[8][4];
    softmax(s, a, o);
    hopper::mbarrier_wait(&shared.ring_full[cursor.slot], cursor.parity);
    if (seq_len - first_key < Traits::kBlock) clear_unwritten(seq_len - first_key);
    issue_value_products<Traits::kFp8>(o, a, &shared.ring[cursor.slot], sizeof(shared.ring[0][0]), true);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(o);
    release_slot();
  }

  // Through the place of Q, which has its layout already.
  __device__ void store(const float (&o)[64], const UnionTile& tile) {
    hopper::named_barrier_sync(1 + wg, 128);  // every warp has done with Q
    char* q = reinterpret_cast<char*>(&shared.q[wg]);
    const float value_scale = scale_of_values(p, tile.head);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float all = sum[h];
      all += __shfl_xor_sync(~0u, all, 1);
      all += __shfl_xor_sync(~0u, all, 2);
      const float scale = all > 0 ? value_scale / all : 0;
      char* row = q + (2 * warp + h) * 2048 + lane / 4 * 128 + lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < 16; ++j)
        *reinterpret_cast<__nv_bfloat162*>(row + j / 8 * 1024 + (j % 8 ^ lane / 4) * 16) =
            __floats2bfloat162_rn(o[4 * j + 2 * h] * scale, o[4 * j + 2 * h + 1] * scale);
    }
    hopper::fence_async_shared();
    hopper::named_barrier_sync(1 + wg, 128);
    if (warp == 0) {
      const int first = wg * Traits::kTileQueries + lane,
                group = (tile.tile.first_row + first) * p.kv_heads + tile.head;
      if (lane < Traits::kTileQueries && first < tile.tile.rows) {
        if constexpr (Traits::kGroup >= 8) {
          hopper::tma_store_4d(&shared.q[wg][lane * Traits::kGroup / 8], &maps.out, 0, 0, 0,
                               group * (Traits::kGroup / 8));
        } else {
          for (int h = 0; h < 2; ++h)
            hopper::tma_store_4d(&shared.q[wg][lane / 2][h][lane % 2 * 4], &maps.out, 0, 0, h, group);
        }
        hopper::bulk_commit();
        hopper::bulk_wait_read<0>();  // the next tile's queries will lie there
      }
      __syncwarp();
    }
  }

  __device__ void load_queries(const UnionTile& tile) {
    const int first = wg * Traits::kTileQueries;
    const int queries = min(max(tile.tile.rows - first, 0), Traits::kTileQueries);
    if (lane == 0)
      hopper::mbarrier_arrive_expect(&shared.q_full[wg],
                                     queries * Traits::kGroup * Traits::kDim * sizeof(__nv_bfloat16));
    __syncwarp();
    const int group = (tile.tile.first_row + first + lane) * p.kv_heads + tile.head;
    if (lane >= queries) return;
    if constexpr (Traits::kGroup >= 8) {
      hopper::tma_load_4d(&shared.q[wg][lane * Traits::kGroup / 8], &maps.q, &shared.q_full[wg], 0, 0, 0,
                          group * (Traits::kGroup / 8));
    } else {
      for (int h = 0; h < 2; ++h)  // two queries share each eight rows
        hopper::tma_load_4d(&shared.q[wg][lane / 2][h][lane % 2 * 4], &maps.q, &shared.q_full[wg], 0, 0, h,
                            group);
    }
  }

  // Queries to f16 where they lie, for e4m3 keys. Normalised queries stay far below f16's largest number.
  __device__ void convert_queries() {
    uint4* q = reinterpret_cast<uint4*>(&shared.q[wg]);
    constexpr int kPieces = Traits::kTileRows * Traits::kDim / 8;
#pragma unroll 2
    for (int i = warp * 32 + lane; i < kPieces; i += 128) {
      uint4 eight = q[i];
      for (uint32_t* word : {&eight.x, &eight.y, &eight.z, &eight.w}) *word = hopper::f16_of_bf16(*word);
      q[i] = eight;
    }
    hopper::fence_async_shared();
    hopper::named_barrier_sync(1 + wg, 128);
  }

  __device__ void attend() {
    for (int round = 0;; ++round) {
      hopper::mbarrier_wait(&shared.tile_full[round % 2], round / 2 & 1);
      const UnionTile& tile = shared.tile[round % 2];
      const int blocks = tile.blocks, seq_len = tile.tile.seq_len;
      const int position = tile.tile.first_position + wg * Traits::kTileQueries;
      if (blocks < 0) return;
      if (warp == 0) load_queries(tile);
      __syncwarp();
      float o[64];
#pragma unroll
      for (int i = 0; i < 64; ++i) o[i] = 0;
      scale_log2 = scale_of_keys(p, tile.head);
      top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0;
      hopper::mbarrier_wait(&shared.q_full[wg], round & 1);
      if constexpr (Traits::kFp8) convert_queries();
      for (int i = 0; i < blocks; ++i) walk(position, seq_len, o);
      store(o, tile);
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&shared.tile_empty[round % 2]);
    }
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    attend_union_kernel(const __grid_constant__ AttendPrefillParams p,
                        const __grid_constant__ AttendPrefillWorkspace ws,
                        const __grid_constant__ PrefillMaps maps) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<AttendUnionShared<Traits>*>(shared_bytes);
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Traits::kRing; ++s)
      hopper::mbarrier_init(&shared.raw_full[s], 1),
          hopper::mbarrier_init(&shared.ring_full[s], Traits::kFp8 ? Traits::kConsumers : 1),
          hopper::mbarrier_init(&shared.ring_empty[s], 4 * Traits::kConsumers);
    for (int c = 0; c < Traits::kConsumers; ++c) hopper::mbarrier_init(&shared.q_full[c], 1);
    for (int t = 0; t < 2; ++t)
      hopper::mbarrier_init(&shared.tile_full[t], 1),
          hopper::mbarrier_init(&shared.tile_empty[t], 5 * Traits::kConsumers + 1);
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  if (wg == 0) {
    hopper::shrink_registers<Traits::kProducerRegisters>();
    UnionProducer<Traits> producer = {p, ws, maps, shared, lane, {}};
    if (warp < Traits::kConsumers)
      producer.prepare(warp);
    else if (lane == 0)
      producer.load_blocks();
  } else {
    hopper::grow_registers<Traits::kConsumerRegisters>();
    UnionConsumer<Traits>{p, maps, shared, wg - 1, warp, lane, {}, 0, {}, {}}.attend();
  }
}

}  // namespace msa::sm90
