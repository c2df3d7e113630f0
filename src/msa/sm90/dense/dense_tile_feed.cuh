// SPDX-License-Identifier: Apache-2.0
// How the tile kernel lays out its shared memory, and the warps that fill it.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"
#include "sm90/convert.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90::dense {

template <hopper::Element kType>
struct TileTraits {
  static constexpr bool kFp8 = kType == hopper::Element::kE4M3;
  static constexpr int kConsumers = 2;  // warpgroups of 64 rows each
  static constexpr int kThreads = 128 * (kConsumers + 1), kMinCtasPerSm = 1;
  static constexpr int kSlots = kFp8 ? 4 : 5;     // K or V of one block each
  static constexpr int kRawSlots = kFp8 ? 4 : 1;  // the same before widening
  static constexpr int kQuerySlots = kFp8 ? 1 : 2;
  static constexpr int kWideningWarps = 3;
  static constexpr int kHalf = 64;  // channels in one 128-byte row of swizzled shared memory
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  // The warpgroups share what the launch gave them, in units of eight per thread: more would wait for ever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (1 + kConsumers) * kLaunchRegisters);
};

template <typename Traits>
struct TileShared {
  using Half = uint16_t[kBlock][Traits::kHalf];  // bf16, or f16 where the cache is e4m3
  alignas(1024) Half kv[Traits::kSlots][2];      // in the order of use: K0, K1, V0, K2, V1, ...
  alignas(1024) Half q[Traits::kQuerySlots][2];
  alignas(128) unsigned char raw[Traits::kFp8 ? Traits::kRawSlots : 0][kBlock][kDim];
  TileItem item[Traits::kQuerySlots];  // of each place of q
  float row_scale[Traits::kQuerySlots][Traits::kFp8 ? kTileRows : 1];
  int32_t no_more[Traits::kRawSlots];  // set in the place after the last raw tile
  uint64_t full[Traits::kSlots], empty[Traits::kSlots];
  uint64_t q_full[Traits::kQuerySlots], q_empty[Traits::kQuerySlots];
  uint64_t raw_full[Traits::kRawSlots], raw_empty[Traits::kRawSlots];
};

struct TileMaps {
  CUtensorMap q, kv;
};

template <typename Traits>
struct TileProducer {
  const DenseParams& p;
  const TileWorkspace& ws;
  const TileMaps& maps;
  TileShared<Traits>& shared;
  int lane;
  int count = 0;  // tiles of K or V sent so far

  __device__ void send(int row) {
    if constexpr (Traits::kFp8) {
      const int slot = count % Traits::kRawSlots;
      hopper::mbarrier_wait(&shared.raw_empty[slot], (count / Traits::kRawSlots & 1) ^ 1);
      if (lane == 0) {
        hopper::mbarrier_arrive_expect(&shared.raw_full[slot], sizeof(shared.raw[0]));
        load_keys(shared.raw[slot], &maps.kv, &shared.raw_full[slot], row);
      }
    } else {
      const int slot = count % Traits::kSlots;
      hopper::mbarrier_wait(&shared.empty[slot], (count / Traits::kSlots & 1) ^ 1);
      if (lane == 0) {
        hopper::mbarrier_arrive_expect(&shared.full[slot], sizeof(shared.kv[0]));
        load_keys(shared.kv[slot], &maps.kv, &shared.full[slot], row);
      }
    }
    __syncwarp();
    ++count;
  }

  __device__ TileItem fetch(int index) const {
    const char* base = static_cast<const char*>(p.workspace);
    TileItem item = {};
    item.queries = -1;
    if (index < reinterpret_cast<const TileHeader*>(base)->num_items)
      item = reinterpret_cast<const TileItem*>(base + ws.items)[index];
    return item;
  }

  // Pages of the item's blocks `first` to `first + 31`, one per lane. Blocks go from the last to the first:
  // those that need a mask come first.
  __device__ int pages_of(const TileItem& item, int first) const {
    const int block = item.first_block + item.blocks - 1 - first - lane;
    return block >= item.first_block ? p.block_table[int64_t{item.request} * p.max_blocks + block] : 0;
  }

  // All but the last block's V, whose row is returned.
  __device__ int send_blocks(const TileItem& item, int pages) {
    int value_row = 0;
    for (int i = 0; i < item.blocks; ++i) {
      if (i > 0 && i % 32 == 0) pages = pages_of(item, i);
      const int row = (__shfl_sync(~0u, pages, i % 32) * p.kv_heads + item.head) * 2 * kBlock;
      send(row);
      if (i > 0) send(value_row);
      value_row = row + kBlock;
    }
    return value_row;
  }

  // The next item, and where its keys lie, are fetched while the ring is still full of this one's.
  __device__ void produce() {
    int32_t* next_item = &reinterpret_cast<TileHeader*>(p.workspace)->next_item;
    const auto take = [&] { return lane == 0 ? static_cast<int>(gridDim.x) + atomicAdd(next_item, 1) : 0; };
    TileItem item = fetch(blockIdx.x);
    int pages = pages_of(item, 0), ticket = take();
    for (int round = 0;; ++round) {
      const int slot = round % Traits::kQuerySlots;
      hopper::mbarrier_wait(&shared.q_empty[slot], (round / Traits::kQuerySlots & 1) ^ 1);
      if (lane == 0) {
        shared.item[slot] = item;
        if (item.blocks > 0) {
          hopper::mbarrier_arrive_expect(&shared.q_full[slot], sizeof(shared.q[0]));
          load_queries(shared.q[slot], &maps.q, &shared.q_full[slot], item.first_query, item.head);
        } else {
          hopper::mbarrier_arrive(&shared.q_full[slot]);
        }
      }
      __syncwarp();
      if (item.queries < 0) break;
      const int value_row = send_blocks(item, pages);
      const bool any = item.blocks > 0;
      item = fetch(__shfl_sync(~0u, ticket, 0));
      ticket = take();
      pages = pages_of(item, 0);
      if (any) send(value_row);
    }
    if constexpr (Traits::kFp8) {
      const int slot = count % Traits::kRawSlots;
      hopper::mbarrier_wait(&shared.raw_empty[slot], (count / Traits::kRawSlots & 1) ^ 1);
      if (lane == 0) {
        shared.no_more[slot] = 1;
        hopper::mbarrier_arrive(&shared.raw_full[slot]);
      }
    }
  }

  // e4m3 tiles become f16 tiles as the copy engine would have left them. Eight neighbouring threads take
  // opposite halves of two rows: neither their loads nor their stores meet in a bank. The next piece of a
  // thread is 12 rows on, where the swizzle differs in one bit.
  __device__ void widen(int thread) {
    constexpr int kRowsOn = 2 * 32 * Traits::kWideningWarps / 16, kPieces = (kBlock + kRowsOn - 1) / kRowsOn;
    static_assert(kRowsOn % 8 == 4);
    constexpr int kBatch = 4;  // loads in flight
    const int key = thread / 16 * 2 + thread / 4 % 2, half = (thread / 8 + thread / 4) % 2,
              piece = thread % 4;
    const uint32_t from = key * kDim + half * 64 + piece * 16;
    const uint32_t to = half * static_cast<int>(sizeof(shared.kv[0][0])) + key * 128;
    const uint32_t place = (2 * piece ^ key % 8) * 16;
    for (;; ++count) {
      const int raw = count % Traits::kRawSlots, slot = count % Traits::kSlots;
      hopper::mbarrier_wait(&shared.raw_full[raw], count / Traits::kRawSlots & 1);
      if (shared.no_more[raw]) return;
      hopper::mbarrier_wait(&shared.empty[slot], (count / Traits::kSlots & 1) ^ 1);
      const uint32_t source = hopper::smem_address(shared.raw[raw]) + from,
                     target = hopper::smem_address(shared.kv[slot]) + to;
#pragma unroll
      for (int first = 0; first < kPieces; first += kBatch) {
        uint4 bytes[kBatch];
#pragma unroll
        for (int i = first; i < first + kBatch; ++i)
          if (key + i * kRowsOn < kBlock) bytes[i - first] = hopper::load_shared(source + i * kRowsOn * kDim);
#pragma unroll
        for (int i = first; i < first + kBatch; ++i) {
          if (key + i * kRowsOn >= kBlock) continue;
          const uint4& x = bytes[i - first];
          const uint32_t row = target + i * kRowsOn * 128, at = place ^ i % 2 * 64;
          uint4 wide[2];
          hopper::widen_e4m3_f16(x.x, wide[0].x, wide[0].y);
          hopper::widen_e4m3_f16(x.y, wide[0].z, wide[0].w);
          hopper::widen_e4m3_f16(x.z, wide[1].x, wide[1].y);
          hopper::widen_e4m3_f16(x.w, wide[1].z, wide[1].w);
          hopper::store_shared(row + at, wide[0]);
          hopper::store_shared(row + (at ^ 16), wide[1]);
        }
      }
      hopper::fence_async_shared();
      __syncwarp();
      if (lane == 0)
        hopper::mbarrier_arrive(&shared.full[slot]), hopper::mbarrier_arrive(&shared.raw_empty[raw]);
    }
  }
};

}  // namespace msa::sm90::dense
