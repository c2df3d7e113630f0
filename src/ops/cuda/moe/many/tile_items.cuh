// SPDX-License-Identifier: Apache-2.0
// Which tiles a CTA of tile.cuh works on, and how the second product begins while the first one ends.
//
// Tiles of the first product are dealt in turn. All take as long as memory does, so most CTAs are idle in the
// last round. CTAs of the second product take their SMs over one by one, and draw items from a counter: who
// comes early does more. They may read a share's hidden rows as soon as all its tiles are stored, which the
// warps of the first product count.
#pragma once

#include <cstdint>

#include "ops/cuda/moe/many/products.h"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

// What a CTA does next: some weight rows of one expert times one share of its tokens.
struct alignas(16) TileWork {
  Share share;
  int first_row, rows;  // none: there is nothing left to do
  int share_at;
};

// The items in the order in which they are dealt. Where the last round would leave half of the CTAs idle, its
// tiles are cut into two of half the weight rows.
template <typename T>
struct TileList {
  int m_tiles, whole, items;

  __device__ __forceinline__ explicit TileList(const TileParams& p) {
    m_tiles = (p.out_rows + T::kRows - 1) / T::kRows;
    const int tiles = *p.num_shares * m_tiles, ctas = static_cast<int>(gridDim.x), rest = tiles % ctas;
    const int cut = 2 * rest <= ctas ? rest : 0;
    whole = tiles - cut, items = tiles + cut;
  }
  __device__ __forceinline__ TileWork operator()(const TileParams& p, int item) const {
    const int half = item - whole, tile = half < 0 ? item : whole + half / 2, share = tile / m_tiles;
    const int first_row = tile % m_tiles * T::kRows + (half < 0 ? 0 : half % 2 * T::kHalf);
    return {p.shares[share], first_row, half < 0 ? T::kRows : T::kHalf, share};
  }
};

// What one thread of the second product deals to the consumer warps and to the thread that brings tokens.
struct TileQueue {
  static constexpr int kSlots = 4, kReaders = 8 + 1;
  TileWork work[kSlots];
  uint64_t full[kSlots], empty[kSlots];

  __device__ __forceinline__ void init() {
    for (int s = 0; s < kSlots; ++s)
      hopper::mbarrier_init(&full[s], 1), hopper::mbarrier_init(&empty[s], kReaders);
  }
};

// Somebody's place in the queue.
struct TileTurn {
  TileQueue& queue;
  uint32_t turn = 0;

  __device__ __forceinline__ int slot() const { return turn % TileQueue::kSlots; }
  __device__ __forceinline__ int parity() const { return turn / TileQueue::kSlots % 2; }

  __device__ __forceinline__ void give(const TileWork& work) {
    hopper::mbarrier_wait(&queue.empty[slot()], parity() ^ 1);
    queue.work[slot()] = work;
    hopper::mbarrier_arrive(&queue.full[slot()]);
    ++turn;
  }
  // Stays as it is until it is given back, by one thread of each reader.
  __device__ __forceinline__ TileWork take() const {
    hopper::mbarrier_wait(&queue.full[slot()], parity());
    return queue.work[slot()];
  }
  __device__ __forceinline__ void give_back() const { hopper::mbarrier_arrive(&queue.empty[slot()]); }
};

// The dealer's: which item comes after one. Without a counter they are dealt in turn.
struct TileDraw {
  uint32_t drawn;

  __device__ __forceinline__ TileDraw(const TileParams& p, int item)
      : drawn(p.counter != nullptr ? atomicAdd(p.counter, 1) : item) {}
  // To be asked some time later: the counter's answer takes as long as memory does.
  __device__ __forceinline__ int next(const TileParams& p, int items) const {
    // One is drawn for each item: after the last one nobody draws.
    if (p.counter != nullptr && drawn + 1 == static_cast<uint32_t>(items)) *p.counter = 0;
    return static_cast<int>(gridDim.x + drawn);
  }
};

// First product: this warp's part of a tile is stored.
template <typename T>
__device__ __forceinline__ void announce_tile(const TileParams& p, const TileWork& work) {
  const int blocks = work.rows / T::kHalf;  // of 64 weight rows
  const int row = work.first_row + static_cast<int>(threadIdx.x) / T::kGroup * blocks * 64;
  __syncwarp();
  if (threadIdx.x % 32 == 0)
    hopper::add_release(&p.shares[work.share_at].stored, max(0, min(blocks, (p.out_rows - row) / 64)));
}

// Second product: one thread waits for the hidden rows of a share, to ask the copy engine for them.
__device__ __forceinline__ void wait_for_share(const TileParams& p, int share) {
  while (hopper::load_acquire(&p.shares[share].stored) < p.all_stored) continue;
  hopper::fence_async_global();
}

}  // namespace sparrow::ops::cuda
