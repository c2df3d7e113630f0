// SPDX-License-Identifier: Apache-2.0
// The second product where all columns of a token tile fit into shared memory (experts of few channels): the
// tokens are held while weight rows stream past them. Loading both for every tile, as tile.cuh does, is bound
// by the way from the L2 to the SMs; this loads a third less.
//
// Two consumer warpgroups work on different tiles of 128 weight rows, each with a ring of its own, in turns:
// one multiplies while the other stores.
#pragma once

#include "ops/cuda/moe/many/tile.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace sparrow::ops::cuda {

template <MatrixFormat kFormat_, int... kWidths>
struct HeldTraits {
  static constexpr bool kFirst = false;
  static constexpr MatrixFormat kFormat = kFormat_;
  static constexpr int kRows = 128, kTokens = std::max({kWidths...}), kStep = RouteMany::kStep, kDepth = 64;
  static constexpr int kMaxSteps = kMaxHeldColumns / kDepth;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup, kTransposes = 2;
  static constexpr int kTilesOfGroup = 8;  // in an item
  static constexpr int kProducerRegisters = is_mx(kFormat) ? 24 : 56;
  static constexpr int kConsumerRegisters = is_mx(kFormat) ? 240 : 224;
  static constexpr int kBoxBytes = kRows / kCellRows * kStageCellBytes<kFormat>;
  static constexpr int kTokenBytes = kTokens * kDepth * 2;
  static constexpr int kStages = std::min(
      6, (227 * 1024 - 1024 - 8 * kTransposes * 512 - kMaxSteps * (kTokenBytes + 16)) / (2 * kBoxBytes + 32));
  struct Smem {
    uint8_t x[kMaxSteps][kTokenBytes];
    uint8_t w[2][kStages][kBoxBytes];
    uint8_t transpose[8][kTransposes][512];
    uint64_t x_full[kMaxSteps], x_empty[kMaxSteps];
    uint64_t full[2][kStages], empty[2][kStages];
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;
  static_assert(kSmemBytes <= 227 * 1024);

  template <typename Visit>
  static __device__ __forceinline__ void with_width(int tokens, const Visit& visit) {
    visit_width<kWidths...>(tokens, visit);
  }
};

enum HeldBarrier { kTurn = 1 };  // and the next, one for each group

// A CTA's next: one share of an expert's tokens, and for each group kTilesOfGroup tiles of weight rows.
template <typename T>
struct HeldList {
  int chunks, items;

  __device__ __forceinline__ explicit HeldList(const TileParams& p) {
    constexpr int kChunk = 2 * T::kTilesOfGroup * T::kRows;
    chunks = (p.out_rows + kChunk - 1) / kChunk, items = chunks * *p.num_shares;
  }
  __device__ __forceinline__ Share share(const TileParams& p, int item) const {
    return p.shares[item / chunks];
  }
  // How many tiles each group has in this item, and where tile i of a group begins.
  __device__ __forceinline__ int tiles(const TileParams& p, int item) const {
    const int rest = p.out_rows - first_row(item, 0, 0);
    return min(T::kTilesOfGroup, (rest + 2 * T::kRows - 1) / (2 * T::kRows));
  }
  __device__ __forceinline__ int first_row(int item, int group, int i) const {
    return ((item % chunks * T::kTilesOfGroup + i) * 2 + group) * T::kRows;
  }
};

// One thread for each group: the weights.
template <typename T>
__device__ __forceinline__ void held_produce_weights(const TileParams& p, typename T::Smem& smem, int group) {
  const HeldList<T> list(p);
  int stage = 0, parity = 1;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    const int w_row = list.share(p, item).expert * p.out_rows, tiles = list.tiles(p, item);
    for (int i = 0; i < tiles; ++i)
      for (int k = 0; k < p.columns; k += T::kDepth) {
        uint64_t* full = &smem.full[group][stage];
        hopper::mbarrier_wait(&smem.empty[group][stage], parity);
        hopper::mbarrier_arrive_expect(full, sizeof(smem.w[0][0]));
        load_weights<T::kFormat>(p, smem.w[group][stage], full, k, w_row + list.first_row(item, group, i));
        if (++stage == T::kStages) stage = 0, parity ^= 1;
      }
  }
}

// One thread: the tokens, each 64 columns as soon as both groups are done with the last item's.
template <typename T>
__device__ __forceinline__ void held_produce_tokens(const TileParams& p, typename T::Smem& smem) {
  constexpr int kBoxBytes = T::kStep * T::kDepth * 2;
  const HeldList<T> list(p);
  int parity = 1;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x, parity ^= 1) {
    const Share share = list.share(p, item);
    const int boxes = (share.count + T::kStep - 1) / T::kStep;
    for (int s = 0; s < p.columns / T::kDepth; ++s) {
      hopper::mbarrier_wait(&smem.x_empty[s], parity);
      hopper::mbarrier_arrive_expect(&smem.x_full[s], boxes * kBoxBytes);
      for (int b = 0; b < boxes; ++b)
        hopper::tma_load_2d(smem.x[s] + b * kBoxBytes, &p.tokens, &smem.x_full[s], s * T::kDepth,
                            share.first + b * T::kStep);
    }
  }
}

struct HeldState {
  int stage = 0, parity = 0, x_parity = 0;
};

// One group's tiles of an item.
template <typename T, int kN>
__device__ __forceinline__ void held_consume(const TileParams& p, typename T::Smem& smem,
                                             const HeldList<T>& list, int item, HeldState& at) {
  const int group = threadIdx.x / T::kGroup, lane = threadIdx.x % 32;
  const int tiles = list.tiles(p, item), steps = p.columns / T::kDepth;
  const bool last_item = item + static_cast<int>(gridDim.x) >= list.items;
  for (int i = 0; i < tiles; ++i) {
    Products<T::kFormat, kN, 2> products;
    products.clear();
    const bool last = i + 1 == tiles;
    uint64_t* previous = nullptr;
    hopper::named_barrier_sync(kTurn + group, 2 * T::kGroup);
    for (int s = 0; s < steps; ++s) {
      if (i == 0) hopper::mbarrier_wait(&smem.x_full[s], at.x_parity);
      hopper::mbarrier_wait(&smem.full[group][at.stage], at.parity);
      products.multiply(smem.w[group][at.stage], hopper::wgmma_descriptor(smem.x[s]), [&] {
        const bool arrives = s > 0 && lane == 0;
        hopper::mbarrier_arrive_if(arrives, previous);
        hopper::mbarrier_arrive_if(arrives && last, &smem.x_empty[s - 1]);
      });
      previous = &smem.empty[group][at.stage];
      if (++at.stage == T::kStages) at.stage = 0, at.parity ^= 1;
    }
    if (group == 0 || !last || !last_item) hopper::named_barrier_arrive(kTurn + 1 - group, 2 * T::kGroup);
    products.finish();
    if (lane == 0) {
      hopper::mbarrier_arrive(previous);
      if (last) hopper::mbarrier_arrive(&smem.x_empty[steps - 1]);
    }
    tile_store<T, kN, 2>(p, smem, products.d, list.share(p, item), list.first_row(item, group, i));
  }
  at.x_parity ^= 1;
}

template <typename T>
__device__ __forceinline__ void held_consume_all(const TileParams& p, typename T::Smem& smem) {
  const HeldList<T> list(p);
  HeldState at;
  if (threadIdx.x >= T::kGroup && static_cast<int>(blockIdx.x) < list.items)
    hopper::named_barrier_arrive(kTurn, 2 * T::kGroup);
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    T::with_width(list.share(p, item).count, [&]<int kN>() { held_consume<T, kN>(p, smem, list, item, at); });
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1) held_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ uint8_t smem_bytes[];
  auto& smem =
      *reinterpret_cast<typename T::Smem*>((reinterpret_cast<uintptr_t>(smem_bytes) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&p.w);
    for (int s = 0; s < T::kMaxSteps; ++s) {
      hopper::mbarrier_init(&smem.x_full[s], 1);
      hopper::mbarrier_init(&smem.x_empty[s], 8);
    }
    for (int s = 0; s < 2 * T::kStages; ++s) {
      hopper::mbarrier_init(&smem.full[0][s], 1);
      hopper::mbarrier_init(&smem.empty[0][s], 4);
    }
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  hopper::wait_for_previous_kernel();
  if (threadIdx.x / T::kGroup == 2) {
    hopper::shrink_registers<T::kProducerRegisters>();
    const int warp = threadIdx.x % T::kGroup / 32;
    if (threadIdx.x % 32 == 0) {
      if (warp < 2)
        held_produce_weights<T>(p, smem, warp);
      else if (warp == 2)
        held_produce_tokens<T>(p, smem);
    }
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    held_consume_all<T>(p, smem);
  }
}

}  // namespace sparrow::ops::cuda
