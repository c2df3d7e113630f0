// SPDX-License-Identifier: Apache-2.0
// How the block-outer attend kernel lays out its shared memory, and the warps that fill it.
#pragma once

#include "msa/sm90/attend/attend_prefill.h"
#include "msa/sm90/attend/invert.cuh"
#include "msa/sm90/softmax.cuh"
#include "sm90/convert.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"
#include "sm90/wgmma.cuh"

namespace msa::sm90 {

template <int kGroupSize, hopper::Element kKvType>
struct AttendPrefillTraits {
  static constexpr int kGroup = kGroupSize, kBlock = 128, kDim = 128;
  static constexpr bool kFp8 = kKvType == hopper::Element::kE4M3;
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
  int32_t last;      // this warpgroup's last tile of the item: K and V may be overwritten after it
  int32_t visible;   // keys of the block that are written
  float scale_log2;  // of the scores: softmax scale, scale of K, log2(e)
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
  uint64_t raw_full[Traits::kKvStages][2];  // e4m3 K, V
  uint64_t k_full[Traits::kKvStages], v_full[Traits::kKvStages], kv_empty[Traits::kKvStages];
  uint64_t q_full[Traits::kConsumers][Traits::kQStages], q_empty[Traits::kConsumers][Traits::kQStages];
};

// Channels come in two halves of 128 bytes, the width of the swizzle, so one copy brings both.
struct PrefillMaps {
  CUtensorMap q;    // [rows / r, half, r, 64 channels], r = min(group, 8); a box is one query's group
  CUtensorMap out;  // the same
  CUtensorMap
      kv;  // [half, rows, 64 channels]; a box is the K or V of one page. e4m3: [rows, 128], no swizzle
};

// e4m3 K or V arrives in the second half of its place and becomes bf16 or f16 there: row r of it lies where
// row r of the second half of the channels will, so a warp that reads whole rows before it writes them needs
// no other place. Sixteen lanes take a row, eight channels each; warp `warp` of `kWarps` does its share of
// the rows. f16 takes fewer instructions, and needs the other operand of the product in f16 too.
template <int kWarps, int kUnroll, bool kF16>
__device__ __forceinline__ void widen_tile(void* tile, int warp, int lane) {
  constexpr int kHalfBytes = 128 * 128, kSteps = 64 / kUnroll;
  const uint32_t base = hopper::smem_address(tile);
  const uint32_t from = base + kHalfBytes + lane * 8, to = base + lane / 8 % 2 * kHalfBytes + lane / 16 * 128;
#pragma unroll 1
  for (int step = warp; step < kSteps; step += kWarps) {
    uint64_t raw[kUnroll];
#pragma unroll
    for (int n = 0; n < kUnroll; ++n) raw[n] = hopper::load_shared_64(from + (step * kUnroll + n) * 256);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kUnroll; ++n) {
      const int pair = step * kUnroll + n, row = pair * 2 + lane / 16;
      const uint32_t words[2] = {static_cast<uint32_t>(raw[n]), static_cast<uint32_t>(raw[n] >> 32)};
      uint4 wide;
      if constexpr (kF16)
        hopper::widen_e4m3_f16(words[0], wide.x, wide.y), hopper::widen_e4m3_f16(words[1], wide.z, wide.w);
      else
        hopper::widen_e4m3(words[0], wide.x, wide.y), hopper::widen_e4m3(words[1], wide.z, wide.w);
      hopper::store_shared(to + pair * 256 + ((lane ^ row) % 8) * 16, wide);
    }
  }
  hopper::fence_async_shared();
  __syncwarp();
}

// O (+)= P V of one block; V as it lies in shared memory, its halves of the channels `half_bytes` apart.
template <bool kF16>
__device__ __forceinline__ void issue_value_products(float (&o)[64], const uint32_t (&a)[8][4], const void* v,
                                                     uint32_t half_bytes, bool accumulate) {
  const uint64_t b = hopper::wgmma_descriptor(v, half_bytes);
  hopper::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    if constexpr (kF16)
      hopper::wgmma_f16<128, 1>(o, a[step], b + step * 2048 / 16, accumulate || step > 0);
    else
      hopper::wgmma<128, 1>(o, a[step], b + step * 2048 / 16, accumulate || step > 0);
  }
  hopper::wgmma_commit();
}

__device__ inline float scale_of_keys(const AttendPrefillParams& p, int head) {
  return p.scale * kLog2e * (p.kv_scales == nullptr ? 1 : p.kv_scales[2 * head]);
}
__device__ inline float scale_of_values(const AttendPrefillParams& p, int head) {
  return p.kv_scales == nullptr ? 1 : p.kv_scales[2 * head + 1];
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

  // The next item, windows in order, so that partials are merged while in the L2. `unit` is where to look
  // first; it becomes -1 when there is none.
  __device__ int4 take_item(int& unit) {
    char* base = static_cast<char*>(p.workspace);
    const auto* num = reinterpret_cast<const int32_t*>(base + ws.num_items);
    const int units = ws.num_windows * p.kv_heads;
    while (unit < units) {
      const int mine = unit + lane < units ? __ldcg(num + unit + lane) : 0;
      for (uint32_t some = __ballot_sync(~0u, mine > 0); some != 0; some &= some - 1) {
        const int at = __ffs(some) - 1, count = __shfl_sync(~0u, mine, at);
        int index = 0;
        if (lane == 0) index = atomicAdd(reinterpret_cast<int32_t*>(base + ws.next_item) + unit + at, 1);
        index = __shfl_sync(~0u, index, 0);
        if (index >= count) continue;
        unit += at;
        return __ldcg(reinterpret_cast<const int4*>(base + ws.items) + int64_t{unit} * ws.window * p.top_k +
                      index);
      }
      unit += 32;
    }
    unit = -1;
    return {};
  }

  // An item is taken before the one ahead of it can be loaded: that hides how long the taking takes.
  __device__ void schedule() {
    int unit = 0;
    int4 item = take_item(unit);
    while (unit >= 0) {
      int next_unit = unit;
      const int4 next = take_item(next_unit);
      publish({item.x, item.y, item.z, item.w}, unit);
      item = next, unit = next_unit;
    }
    publish({0, 0, 0, 0}, -1);
  }

  __device__ void publish(const PrefillItem& item, int unit) {
    const int stage = items_done % Traits::kKvStages;
    hopper::mbarrier_wait(&shared.item_empty[stage], (items_done / Traits::kKvStages & 1) ^ 1);
    hopper::mbarrier_wait(&shared.kv_empty[stage], (items_done / Traits::kKvStages & 1) ^ 1);
    if (lane == 0) {
      shared.item[stage] = item, shared.unit[stage] = unit;
      hopper::mbarrier_arrive(&shared.item_full[stage]);
      if (unit >= 0) load_kv(item, unit % p.kv_heads, stage);
    }
    __syncwarp();
    ++items_done;
  }

  __device__ void load_kv(const PrefillItem& item, int head, int stage) {
    const int row = (item.page * p.kv_heads + head) * 2 * Traits::kBlock;
    if constexpr (Traits::kFp8) {
      uint64_t* full = shared.raw_full[stage];
      hopper::mbarrier_arrive_expect(&full[0], sizeof(shared.k[0][1]));
      hopper::tma_load_2d(shared.k[stage][1], &maps.kv, &full[0], 0, row);
      hopper::mbarrier_arrive_expect(&full[1], sizeof(shared.v[0][1]));
      hopper::tma_load_2d(shared.v[stage][1], &maps.kv, &full[1], 0, row + Traits::kBlock);
    } else {
      hopper::mbarrier_arrive_expect(&shared.k_full[stage], sizeof(shared.k[0]));
      hopper::tma_load_3d(shared.k[stage], &maps.kv, &shared.k_full[stage], 0, row, 0);
      hopper::mbarrier_arrive_expect(&shared.v_full[stage], sizeof(shared.v[0]));
      hopper::tma_load_3d(shared.v[stage], &maps.kv, &shared.v_full[stage], 0, row + Traits::kBlock, 0);
    }
    const int tiles = ((item.count_visible & 0xffff) + Traits::kTileQueries - 1) / Traits::kTileQueries;
    if (tiles < Traits::kConsumers)  // for the warpgroups without a tile
      hopper::mbarrier_arrive_many(&shared.kv_empty[stage], 4 * (Traits::kConsumers - tiles));
  }

  // A feeding warp's share of an item's K and V. K meets bf16 queries: turning those into f16 once for each
  // tile would take the warpgroups' time.
  __device__ void widen(int warp, int stage, int parity) {
    hopper::mbarrier_wait(&shared.raw_full[stage][0], parity);
    widen_tile<Traits::kConsumers, 4, false>(shared.k[stage], warp, lane);
    if (lane == 0) hopper::mbarrier_arrive(&shared.k_full[stage]);
    hopper::mbarrier_wait(&shared.raw_full[stage][1], parity);
    widen_tile<Traits::kConsumers, 4, true>(shared.v[stage], warp, lane);
    if (lane == 0) hopper::mbarrier_arrive(&shared.v_full[stage]);
  }

  // One tile for warpgroup `wg`: lane i < kTileQueries brings query i's entry.
  __device__ void load_q(int wg, int round, const PrefillTile& tile, const PrefillItem& item, int head,
                         int entry) {
    const int stage = round % Traits::kQStages;
    hopper::mbarrier_wait(&shared.q_empty[wg][stage], (round / Traits::kQStages & 1) ^ 1);
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
    if (lane == 18) out.scale_log2 = tile.scale_log2;
    __syncwarp();
    uint64_t* full = &shared.q_full[wg][stage];
    if (lane == 0)
      hopper::mbarrier_arrive_expect(full, queries * Traits::kGroup * Traits::kDim * sizeof(__nv_bfloat16));
    __syncwarp();
    if (!valid) return;
    if constexpr (Traits::kGroup >= 8) {
      hopper::tma_load_4d(&shared.q[wg][stage][lane * Traits::kGroup / 8], &maps.q, full, 0, 0, 0,
                          group * (Traits::kGroup / 8));
    } else {
      for (int h = 0; h < 2; ++h)  // two queries share each eight rows
        hopper::tma_load_4d(&shared.q[wg][stage][lane / 2][h][lane % 2 * 4], &maps.q, full, 0, 0, h, group);
    }
  }

  __device__ void feed(int wg) {
    constexpr int kBatchTiles = 32 / Traits::kTileQueries;  // entries of this many tiles are fetched at once
    const auto* entries =
        reinterpret_cast<const int32_t*>(static_cast<const char*>(p.workspace) + ws.entries);
    for (int tiles_before = 0, round = 0;; ++items_done) {
      const int stage = items_done % Traits::kKvStages, parity = items_done / Traits::kKvStages & 1;
      hopper::mbarrier_wait(&shared.item_full[stage], parity);
      const PrefillItem item = shared.item[stage];
      const int unit = shared.unit[stage];
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(&shared.item_empty[stage]);
      if (unit < 0) {
        PrefillTile end = {};
        end.kv_stage = -1;
        return load_q(wg, round, end, item, 0, -1);
      }
      if constexpr (Traits::kFp8) widen(wg, stage, parity);
      const int count = item.count_visible & 0xffff;
      const int tiles = (count + Traits::kTileQueries - 1) / Traits::kTileQueries;
      const int32_t* list = entries + int64_t{unit} * ws.window * p.top_k + item.first;
      // Tiles go round the warpgroups without starting over at each item.
      int i = (wg + Traits::kConsumers - tiles_before % Traits::kConsumers) % Traits::kConsumers;
      const auto fetch = [&](int first) {
        const int at = (first + lane / Traits::kTileQueries * Traits::kConsumers) * Traits::kTileQueries +
                       lane % Traits::kTileQueries;
        return at < count ? __ldcg(list + at) : -1;
      };
      PrefillTile tile = {};
      tile.kv_stage = stage, tile.kv_parity = parity, tile.visible = item.count_visible >> 16;
      const int head = unit % p.kv_heads;
      tile.scale_log2 = scale_of_keys(p, head);
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
