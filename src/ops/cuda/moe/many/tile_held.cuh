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

struct HeldTraits {
  static constexpr bool kFirst = false;
  static constexpr int kRows = 128, kTokens = RouteMany::kTokens, kStep = RouteMany::kStep, kDepth = 64;
  static constexpr int kMaxSteps = 6, kMaxColumns = kMaxSteps * kDepth;
  static constexpr int kStages = 3, kGroup = 128, kThreads = 3 * kGroup, kTransposes = 2;
  static constexpr int kTilesOfGroup = 8;  // in an item
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  struct Smem {
    uint8_t x[kMaxSteps][kTokens * kDepth * 2];
    uint8_t w[2][kStages][kRows * kDepth * 2];
    uint8_t transpose[8][kTransposes][512];
    uint64_t x_full[kMaxSteps], x_empty[kMaxSteps];
    uint64_t full[2][kStages], empty[2][kStages];
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;
  static_assert(kSmemBytes <= 227 * 1024);
};

enum HeldBarrier { kTurn = 1 };  // and the next, one for each group

// A CTA's next: one share of an expert's tokens, and for each group kTilesOfGroup tiles of weight rows.
struct HeldList {
  int chunks, items;

  __device__ __forceinline__ explicit HeldList(const TileParams& p) {
    constexpr int kChunk = 2 * HeldTraits::kTilesOfGroup * HeldTraits::kRows;
    chunks = (p.out_rows + kChunk - 1) / kChunk, items = chunks * *p.num_shares;
  }
  __device__ __forceinline__ Share share(const TileParams& p, int item) const {
    return p.shares[item / chunks];
  }
  // How many tiles each group has in this item, and where tile i of a group begins.
  __device__ __forceinline__ int tiles(const TileParams& p, int item) const {
    const int rest = p.out_rows - first_row(item, 0, 0);
    return min(HeldTraits::kTilesOfGroup, (rest + 2 * HeldTraits::kRows - 1) / (2 * HeldTraits::kRows));
  }
  __device__ __forceinline__ int first_row(int item, int group, int i) const {
    return ((item % chunks * HeldTraits::kTilesOfGroup + i) * 2 + group) * HeldTraits::kRows;
  }
};

// One thread for each group: the weights.
__device__ __forceinline__ void held_produce_weights(const TileParams& p, HeldTraits::Smem& smem, int group) {
  using T = HeldTraits;
  const HeldList list(p);
  int stage = 0, parity = 1;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    const int w_row = list.share(p, item).expert * p.out_rows, tiles = list.tiles(p, item);
    for (int i = 0; i < tiles; ++i)
      for (int k = 0; k < p.columns; k += T::kDepth) {
        uint64_t* full = &smem.full[group][stage];
        hopper::mbarrier_wait(&smem.empty[group][stage], parity);
        hopper::mbarrier_arrive_expect(full, sizeof(smem.w[0][0]));
        hopper::tma_load_2d(smem.w[group][stage], &p.w, full, k, w_row + list.first_row(item, group, i));
        if (++stage == T::kStages) stage = 0, parity ^= 1;
      }
  }
}

// One thread: the tokens, each 64 columns as soon as both groups are done with the last item's.
__device__ __forceinline__ void held_produce_tokens(const TileParams& p, HeldTraits::Smem& smem) {
  using T = HeldTraits;
  constexpr int kBoxBytes = T::kStep * T::kDepth * 2;
  const HeldList list(p);
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
template <int kN>
__device__ __forceinline__ void held_consume(const TileParams& p, HeldTraits::Smem& smem,
                                             const HeldList& list, int item, HeldState& at) {
  using T = HeldTraits;
  const int group = threadIdx.x / T::kGroup, lane = threadIdx.x % 32;
  const int tiles = list.tiles(p, item), steps = p.columns / T::kDepth;
  const bool last_item = item + static_cast<int>(gridDim.x) >= list.items;
  for (int i = 0; i < tiles; ++i) {
    float d[2][kN / 2];
#pragma unroll
    for (int e = 0; e < kN; ++e) d[e / (kN / 2)][e % (kN / 2)] = 0;
    const bool last = i + 1 == tiles;
    uint64_t* previous = nullptr;
    hopper::named_barrier_sync(kTurn + group, 2 * T::kGroup);
    for (int s = 0; s < steps; ++s) {
      if (i == 0) hopper::mbarrier_wait(&smem.x_full[s], at.x_parity);
      hopper::mbarrier_wait(&smem.full[group][at.stage], at.parity);
      const uint64_t a = hopper::wgmma_descriptor(smem.w[group][at.stage]);
      const uint64_t b = hopper::wgmma_descriptor(smem.x[s]);
      hopper::wgmma_fence();
#pragma unroll
      for (int j = 0; j < T::kDepth / 16; ++j)
#pragma unroll
        for (int m = 0; m < 2; ++m) hopper::wgmma<kN>(d[m], a + j * 2 + m * 64 * 128 / 16, b + j * 2, 1);
      hopper::wgmma_commit();
      hopper::wgmma_wait<1>();
      if (s > 0 && lane == 0) {
        hopper::mbarrier_arrive(previous);
        if (last) hopper::mbarrier_arrive(&smem.x_empty[s - 1]);
      }
      previous = &smem.empty[group][at.stage];
      if (++at.stage == T::kStages) at.stage = 0, at.parity ^= 1;
    }
    if (group == 0 || !last || !last_item) hopper::named_barrier_arrive(kTurn + 1 - group, 2 * T::kGroup);
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(d[0]);
    hopper::wgmma_pin(d[1]);
    if (lane == 0) {
      hopper::mbarrier_arrive(previous);
      if (last) hopper::mbarrier_arrive(&smem.x_empty[steps - 1]);
    }
    tile_store<T, kN, 2>(p, smem, d, list.share(p, item), list.first_row(item, group, i));
  }
  at.x_parity ^= 1;
}

__device__ __forceinline__ void held_consume_all(const TileParams& p, HeldTraits::Smem& smem) {
  using T = HeldTraits;
  const HeldList list(p);
  HeldState at;
  if (threadIdx.x >= T::kGroup && static_cast<int>(blockIdx.x) < list.items)
    hopper::named_barrier_arrive(kTurn, 2 * T::kGroup);
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    switch ((list.share(p, item).count + T::kStep - 1) / T::kStep) {
      case 1:
        held_consume<16>(p, smem, list, item, at);
        break;
      case 2:
        held_consume<32>(p, smem, list, item, at);
        break;
      case 3:
        held_consume<48>(p, smem, list, item, at);
        break;
      case 4:
        held_consume<64>(p, smem, list, item, at);
        break;
      case 5:
        held_consume<80>(p, smem, list, item, at);
        break;
      case 6:
        held_consume<96>(p, smem, list, item, at);
        break;
      case 7:
        held_consume<112>(p, smem, list, item, at);
        break;
      case 8:
        held_consume<128>(p, smem, list, item, at);
        break;
      case 9:
        held_consume<144>(p, smem, list, item, at);
        break;
      default:
        held_consume<160>(p, smem, list, item, at);
        break;
    }
  }
}

static __global__ void __launch_bounds__(HeldTraits::kThreads, 1)
    held_kernel(const __grid_constant__ TileParams p) {
  using T = HeldTraits;
  extern __shared__ uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<T::Smem*>((reinterpret_cast<uintptr_t>(smem_bytes) + 1023) / 1024 * 1024);
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
        held_produce_weights(p, smem, warp);
      else if (warp == 2)
        held_produce_tokens(p, smem);
    }
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    held_consume_all(p, smem);
  }
}

}  // namespace sparrow::ops::cuda
