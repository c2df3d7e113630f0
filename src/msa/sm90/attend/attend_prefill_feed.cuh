// SPDX-License-Identifier: Apache-2.0
// How the block-outer attend kernel lays out its shared memory, and the warps that fill it.
#pragma once

#include "msa/sm90/attend/attend_prefill.h"
#include "msa/sm90/attend/invert.cuh"
#include "msa/sm90/ptx.cuh"

namespace msa::sm90 {

template <int kGroupSize>
struct AttendPrefillTraits {
  static constexpr int kGroup = kGroupSize, kBlock = 128, kDim = 128;
  static constexpr int kTileRows = 64, kTileQueries = kTileRows / kGroup;
  static constexpr int kConsumers = 3;  // warpgroups
  static constexpr int kThreads = 128 * (kConsumers + 1), kMinCtasPerSm = 1;
  static constexpr int kKvStages = 2, kQStages = 2;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 152;
  static constexpr int kHalf = 64;  // channels in one 128-byte row of swizzled shared memory
  static_assert(128 * (kProducerRegisters + kConsumers * kConsumerRegisters) <= 65536, "register file");
};

// What a warpgroup must know of its tile.
struct PrefillTile {
  int32_t partial[16];  // of each query: (row * kv_heads + KV head) * top_k + slot; -1: no query
  int32_t limit[16];    // last key of the block that the query may see
  int32_t kv_stage;     // -1: no more tiles
  int32_t kv_parity;
  int32_t last;     // this warpgroup's last tile of the item: K and V may be overwritten after it
  int32_t visible;  // keys of the block that are written
};

template <typename Traits>
struct AttendPrefillShared {
  using Half = __nv_bfloat16[Traits::kBlock][Traits::kHalf];
  alignas(1024) Half k[Traits::kKvStages][2];
  alignas(1024) Half v[Traits::kKvStages][2];
  alignas(1024)
      __nv_bfloat16 q[Traits::kConsumers][Traits::kQStages][Traits::kTileRows / 8][2][8][Traits::kHalf];
  PrefillTile tile[Traits::kConsumers][Traits::kQStages];
  PrefillItem item[Traits::kKvStages];
  int32_t unit[Traits::kKvStages];  // of the item: window * kv_heads + KV head; -1: no more
  uint64_t item_full[Traits::kKvStages], item_empty[Traits::kKvStages];
  uint64_t k_full[Traits::kKvStages], v_full[Traits::kKvStages], kv_empty[Traits::kKvStages];
  uint64_t q_full[Traits::kConsumers][Traits::kQStages], q_empty[Traits::kConsumers][Traits::kQStages];
};

// Channels come in two halves of 128 bytes, the width of the swizzle, so one copy brings both.
struct PrefillMaps {
  CUtensorMap q;   // [rows / r, half, r, 64 channels], r = min(group, 8); a box is one query's group
  CUtensorMap kv;  // [half, rows, 64 channels]; a box is the K or V of one page
};

__device__ __forceinline__ void tma_load_3d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y,
                                            int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(smem_address(dst)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z)
      : "memory");
}

__device__ __forceinline__ void tma_load_4d(void* dst, const CUtensorMap* map, uint64_t* bar, int x, int y,
                                            int z, int w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(smem_address(dst)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(smem_address(bar)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_many(uint64_t* bar, uint32_t count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(bar)), "r"(count)
               : "memory");
}

// Four warps feed a CTA. The scheduler takes items and loads K and V; feeder w gathers the queries of
// warpgroup w's tiles, one copy per query: one warp alone could not issue them fast enough. All lanes of a
// warp run this together.
template <typename Traits>
struct PrefillProducer {
  const AttendPrefillParams& p;
  const AttendPrefillWorkspace& ws;
  const PrefillMaps& maps;
  AttendPrefillShared<Traits>& shared;
  int lane;
  int items_done = 0;

  __device__ void schedule() {
    char* base = static_cast<char*>(p.workspace);
    auto* next = reinterpret_cast<int32_t*>(base + ws.next_item);
    const auto* num = reinterpret_cast<const int32_t*>(base + ws.num_items);
    const auto* items = reinterpret_cast<const int4*>(base + ws.items);
    const int units = ws.num_windows * p.kv_heads;
    for (int unit = 0; unit < units;
         ++unit) {  // windows in order, so that partials are merged while in the L2
      for (const int count = num[unit];;) {
        int index = 0;
        if (lane == 0) index = atomicAdd(next + unit, 1);
        index = __shfl_sync(~0u, index, 0);
        if (index >= count) break;
        const int4 item = items[int64_t{unit} * ws.window * p.top_k + index];
        publish({item.x, item.y, item.z, item.w}, unit);
      }
    }
    publish({0, 0, 0, 0}, -1);
  }

  __device__ void publish(const PrefillItem& item, int unit) {
    const int stage = items_done % Traits::kKvStages;
    mbarrier_wait(&shared.item_empty[stage], (items_done / Traits::kKvStages & 1) ^ 1);
    mbarrier_wait(&shared.kv_empty[stage], (items_done / Traits::kKvStages & 1) ^ 1);
    if (lane == 0) {
      shared.item[stage] = item, shared.unit[stage] = unit;
      mbarrier_arrive(&shared.item_full[stage]);
      if (unit >= 0) load_kv(item, unit % p.kv_heads, stage);
    }
    __syncwarp();
    ++items_done;
  }

  __device__ void load_kv(const PrefillItem& item, int head, int stage) {
    const int row = (item.page * p.kv_heads + head) * 2 * Traits::kBlock;
    mbarrier_arrive_expect(&shared.k_full[stage], sizeof(shared.k[0]));
    tma_load_3d(shared.k[stage], &maps.kv, &shared.k_full[stage], 0, row, 0);
    mbarrier_arrive_expect(&shared.v_full[stage], sizeof(shared.v[0]));
    tma_load_3d(shared.v[stage], &maps.kv, &shared.v_full[stage], 0, row + Traits::kBlock, 0);
    const int tiles = ((item.count_visible & 0xffff) + Traits::kTileQueries - 1) / Traits::kTileQueries;
    if (tiles < Traits::kConsumers)  // for the warpgroups without a tile
      mbarrier_arrive_many(&shared.kv_empty[stage], 4 * (Traits::kConsumers - tiles));
  }

  // One tile for warpgroup `wg`: lane i < kTileQueries brings query i's entry.
  __device__ void load_q(int wg, int round, const PrefillTile& tile, const PrefillItem& item, int head,
                         int entry) {
    const int stage = round % Traits::kQStages;
    mbarrier_wait(&shared.q_empty[wg][stage], (round / Traits::kQStages & 1) ^ 1);
    PrefillTile& out = shared.tile[wg][stage];
    const bool valid = lane < Traits::kTileQueries && entry != -1;
    const int queries = __popc(__ballot_sync(~0u, valid));
    const int row = entry & kEntryRowMask,
              slot = static_cast<int>(static_cast<uint32_t>(entry) >> kEntryRowBits);
    const int group = row * p.kv_heads + head;
    if (lane < 16) {
      out.partial[lane] = valid ? group * p.top_k + slot : -1;
      out.limit[lane] = valid ? row + item.limit_offset : Traits::kBlock;
    }
    if (lane == 16) out.kv_stage = tile.kv_stage, out.kv_parity = tile.kv_parity;
    if (lane == 17) out.last = tile.last, out.visible = tile.visible;
    __syncwarp();
    uint64_t* full = &shared.q_full[wg][stage];
    if (lane == 0)
      mbarrier_arrive_expect(full, queries * Traits::kGroup * Traits::kDim * sizeof(__nv_bfloat16));
    __syncwarp();
    if (!valid) return;
    if constexpr (Traits::kGroup >= 8) {
      tma_load_4d(&shared.q[wg][stage][lane * Traits::kGroup / 8], &maps.q, full, 0, 0, 0,
                  group * (Traits::kGroup / 8));
    } else {
      for (int h = 0; h < 2; ++h)  // two queries share each eight rows
        tma_load_4d(&shared.q[wg][stage][lane / 2][h][lane % 2 * 4], &maps.q, full, 0, 0, h, group);
    }
  }

  __device__ void feed(int wg) {
    constexpr int kBatchTiles = 32 / Traits::kTileQueries;  // entries of this many tiles are fetched at once
    const auto* entries =
        reinterpret_cast<const int32_t*>(static_cast<const char*>(p.workspace) + ws.entries);
    for (int tiles_before = 0, round = 0;; ++items_done) {
      const int stage = items_done % Traits::kKvStages, parity = items_done / Traits::kKvStages & 1;
      mbarrier_wait(&shared.item_full[stage], parity);
      const PrefillItem item = shared.item[stage];
      const int unit = shared.unit[stage];
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.item_empty[stage]);
      if (unit < 0) {
        PrefillTile end = {};
        end.kv_stage = -1;
        return load_q(wg, round, end, item, 0, -1);
      }
      const int count = item.count_visible & 0xffff;
      const int tiles = (count + Traits::kTileQueries - 1) / Traits::kTileQueries;
      const int32_t* list = entries + int64_t{unit} * ws.window * p.top_k + item.first;
      // Tiles go round the warpgroups without starting over at each item.
      int i = (wg + Traits::kConsumers - tiles_before % Traits::kConsumers) % Traits::kConsumers;
      const auto fetch = [&](int first) {
        const int at = (first + lane / Traits::kTileQueries * Traits::kConsumers) * Traits::kTileQueries +
                       lane % Traits::kTileQueries;
        return at < count ? list[at] : -1;
      };
      PrefillTile tile = {};
      tile.kv_stage = stage, tile.kv_parity = parity, tile.visible = item.count_visible >> 16;
      const int head = unit % p.kv_heads;
      int next = fetch(i), batch = -1;
      for (int n = 0; i < tiles; ++n, ++round, i += Traits::kConsumers) {
        if (n % kBatchTiles == 0) batch = next, next = fetch(i + kBatchTiles * Traits::kConsumers);
        const int from = n % kBatchTiles * Traits::kTileQueries + lane % Traits::kTileQueries;
        tile.last = i + Traits::kConsumers >= tiles;
        load_q(wg, round, tile, item, head, __shfl_sync(~0u, batch, from));
      }
      tiles_before += tiles;
    }
  }
};

}  // namespace msa::sm90
