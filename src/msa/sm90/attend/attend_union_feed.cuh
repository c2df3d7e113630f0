// SPDX-License-Identifier: Apache-2.0
// What feeds the query-tile kernel of attend_union.cuh: its shapes, its shared memory, and the warps that
// fill the ring.
#pragma once

#include "msa/sm90/attend/attend_prefill_feed.cuh"
#include "msa/sm90/attend/query_tile.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

template <int kGroupSize, hopper::Element kKvType>
struct AttendUnionTraits {
  static constexpr int kGroup = kGroupSize, kBlock = 128, kDim = 128;
  static constexpr bool kFp8 = kKvType == hopper::Element::kE4M3;
  static constexpr int kTileRows = 64, kTileQueries = kTileRows / kGroup;  // of a warpgroup
  static constexpr int kConsumers = 3, kCtaQueries = kConsumers * kTileQueries;
  static constexpr int kThreads = 128 * (kConsumers + 1), kMinCtasPerSm = 1;
  static constexpr int kRing = 5;  // slots, each the K or the V of a block
  static constexpr int kProducerRegisters = 32, kConsumerRegisters = 160;
  static constexpr int kHalf = 64;  // channels in one 128-byte row of swizzled shared memory
  static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 65536, "register file");
};

template <typename Traits>
struct AttendUnionShared {
  using Half = __nv_bfloat16[Traits::kBlock][Traits::kHalf];
  alignas(1024) Half ring[Traits::kRing][2];
  alignas(1024) __nv_bfloat16 q[Traits::kConsumers][Traits::kTileRows / 8][2][8][Traits::kHalf];
  UnionBlock block[Traits::kRing];  // that is in the slot
  UnionTile tile[2];
  uint64_t raw_full[Traits::kRing];  // e4m3
  uint64_t ring_full[Traits::kRing], ring_empty[Traits::kRing];
  uint64_t q_full[Traits::kConsumers];
  uint64_t tile_full[2], tile_empty[2];
};

// A place in the ring: slots are used in turn.
template <int kSlots>
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// The warps that fill the ring: three prepare, a fourth loads K and V.
template <typename Traits>
struct UnionProducer {
  const AttendPrefillParams& p;
  const AttendPrefillWorkspace& ws;
  const PrefillMaps& maps;
  AttendUnionShared<Traits>& shared;
  int lane;
  RingCursor<Traits::kRing> cursor;

  // One thread does this.
  __device__ void take_tile(int round) {
    char* base = static_cast<char*>(p.workspace);
    auto* lists = reinterpret_cast<TileLists*>(base + ws.lists);
    if (round == 0) {
      while (hopper::load_acquire(&lists->ready) == 0) {
      }
    }
    const int index = atomicAdd(&lists->next_union, 1);
    const auto* units = reinterpret_cast<const int4*>(base + ws.union_units) + 2 * index;
    hopper::mbarrier_wait(&shared.tile_empty[round % 2], (round / 2 & 1) ^ 1);
    auto* next = reinterpret_cast<int4*>(&shared.tile[round % 2]);
    if (index < __ldcg(&lists->num_union))
      next[0] = __ldcg(units), next[1] = __ldcg(units + 1);
    else
      shared.tile[round % 2].blocks = -1;
    hopper::mbarrier_arrive(&shared.tile_full[round % 2]);
  }

  // The lists are made by one CTA of the kernel before; the rest of it is awaited only for the sake of the
  // next kernel, once this CTA has something to do.
  __device__ void hand_on() {
    hopper::wait_for_previous_kernel();
    hopper::let_next_kernel_start();
  }

  // Warp 0 takes the tiles; all three widen what arrives as e4m3.
  __device__ void prepare(int warp) {
    for (int round = 0;; ++round) {
      if (warp == 0 && lane == 0) take_tile(round);
      if (warp == 1 && round == 1) hand_on();
      __syncwarp();
      hopper::mbarrier_wait(&shared.tile_full[round % 2], round / 2 & 1);
      const int blocks = shared.tile[round % 2].blocks;
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&shared.tile_empty[round % 2]);
      if (blocks < 0) {
        if (warp == 1 && round == 0) hand_on();
        return;
      }
      if constexpr (Traits::kFp8) widen(warp, 2 * blocks);
    }
  }

  // This warp's share of the next `slots` of the ring.
  __device__ void widen(int warp, int slots) {
#pragma unroll 1
    for (int i = 0; i < slots; ++i) {
      hopper::mbarrier_wait(&shared.raw_full[cursor.slot], cursor.parity);
      widen_tile<Traits::kConsumers, 2, true>(shared.ring[cursor.slot], warp, lane);
      if (lane == 0) hopper::mbarrier_arrive(&shared.ring_full[cursor.slot]);
      cursor.advance();
    }
  }

  // One thread does this.
  __device__ void load_blocks() {
    for (int round = 0;; ++round) {
      hopper::mbarrier_wait(&shared.tile_full[round % 2], round / 2 & 1);
      const int blocks = shared.tile[round % 2].blocks;
      const int64_t unit = shared.tile[round % 2].unit;
      hopper::mbarrier_arrive(&shared.tile_empty[round % 2]);
      if (blocks < 0) return;
      const auto* list =
          reinterpret_cast<const int4*>(static_cast<const char*>(p.workspace) + ws.union_blocks) +
          unit * ws.tile_queries * p.top_k;
      int4 block = __ldcg(list);
#pragma unroll 1
      for (int i = 0; i < 2 * blocks; ++i) {  // K and V in turn
        hopper::mbarrier_wait(&shared.ring_empty[cursor.slot], cursor.parity ^ 1);
        *reinterpret_cast<int4*>(&shared.block[cursor.slot]) = block;
        if constexpr (Traits::kFp8) {
          hopper::mbarrier_arrive_expect(&shared.raw_full[cursor.slot], sizeof(shared.ring[0][1]));
          hopper::tma_load_2d(shared.ring[cursor.slot][1], &maps.kv, &shared.raw_full[cursor.slot], 0,
                              block.y);
        } else {
          hopper::mbarrier_arrive_expect(&shared.ring_full[cursor.slot], sizeof(shared.ring[0]));
          hopper::tma_load_3d(shared.ring[cursor.slot], &maps.kv, &shared.ring_full[cursor.slot], 0, block.y,
                              0);
        }
        cursor.advance();
        block.y += Traits::kBlock;
        if (i % 2 == 1) block = __ldcg(list + min(i / 2 + 1, blocks - 1));
      }
    }
  }
};

}  // namespace msa::sm90
