// SPDX-License-Identifier: Apache-2.0
// Products of many rows on wgmma: tiles of 256 weight rows (M) by up to 160 tokens of one expert (N; cells:
// 144), persistent CTAs. Weights are M so that a tile is as wide as its tokens are many, in steps of 16: an
// expert with 270 rows costs 288.
//
// A producer warpgroup fills a ring: weights by the copy engine; tokens by the copy engine where they lie in
// sorted order (hidden rows), by 16-byte copies of 128 threads where they are gathered (x), so that a
// permuted x never goes through memory. Two consumer warpgroups hold 128 weight rows each. Neighbouring CTAs
// work on the same tokens, an expert's tiles follow each other: both come from the L2. Large products run
// into the power limit of the card, so what counts beside keeping the tensor cores busy is moving few bytes.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/moe/fragments.cuh"
#include "ops/cuda/moe/many/products.h"
#include "ops/cuda/moe/many/route_many.cuh"
#include "ops/cuda/moe/many/tile_items.cuh"
#include "ops/cuda/moe/many/tile_multiply.cuh"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma.cuh"

namespace sparrow::ops::cuda {

// Calls visit.operator()<width> with the first of the widths that takes so many tokens.
template <int kWidth, int... kMore, typename Visit>
__device__ __forceinline__ void visit_width(int tokens, const Visit& visit) {
  if constexpr (sizeof...(kMore) > 0)
    if (tokens > kWidth) return visit_width<kMore...>(tokens, visit);
  visit.template operator()<kWidth>();
}

// Tiles of these widths (tokens), which ascend.
template <bool kFirst_, MatrixFormat kFormat_, bool kSmallAhead_, int... kWidths>
struct TileTraits {
  static constexpr bool kFirst = kFirst_;  // gate and up: gathered rows in, activation out
  static constexpr MatrixFormat kFormat = kFormat_;
  static constexpr bool kSmallAhead = kSmallAhead_;  // which tiles are ahead: see tile_consume()
  static constexpr int kRows = 256, kHalf = kRows / 2;
  static constexpr int kTokens = std::max({kWidths...}), kStep = RouteMany::kStep, kDepth = 64;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup;
  static constexpr int kTransposes = is_mx(kFormat) ? 2 : 4;  // buffers of a warp, in turn
  static constexpr int kProducerRegisters = is_mx(kFormat) ? 40 : 56;
  static constexpr int kConsumerRegisters = is_mx(kFormat) ? 232 : 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 504);
  static constexpr int kBoxBytes = kHalf / kCellRows * kStageCellBytes<kFormat>;
  static constexpr int kTokenBytes = kTokens * kDepth * 2, kTransposeBytes = 8 * kTransposes * 512;
  // As many stages as there is room for: all of them are on their way.
  static constexpr int kStages =
      (227 * 1024 - 1024 - kTransposeBytes - sizeof(TileQueue)) / (2 * kBoxBytes + kTokenBytes + 16);
  struct Smem {
    uint8_t x[kStages][kTokenBytes];
    uint8_t w[kStages][2][kBoxBytes];
    uint8_t transpose[8][kTransposes][512];  // of each consumer warp
    uint64_t full[kStages], empty[kStages];
    TileQueue queue;  // second product
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;  // the swizzle wants 1024-byte alignment
  static_assert(kSmemBytes <= 227 * 1024);

  template <typename Visit>
  static __device__ __forceinline__ void with_width(int tokens, const Visit& visit) {
    visit_width<kWidths...>(tokens, visit);
  }
};

// A box of weights: 128 rows by 64 columns.
template <MatrixFormat kFormat>
__device__ __forceinline__ void load_weights(const TileParams& p, void* to, uint64_t* full, int column,
                                             int row) {
  if constexpr (is_mx(kFormat))
    hopper::tma_load_2d(to, &p.w, full, column / kCellColumns * (cell_bytes(kFormat) / 8), row / kCellRows);
  else
    hopper::tma_load_2d(to, &p.w, full, column, row);
}

// Asks for the weights of a stage: one thread.
template <typename T>
__device__ __forceinline__ void tile_load_weights(const TileParams& p, typename T::Smem& smem,
                                                  const TileWork& work, int k, int stage) {
  uint64_t* full = &smem.full[stage];
  const int row = work.share.expert * p.out_rows + work.first_row;
  hopper::mbarrier_arrive_expect(full, work.rows / T::kHalf * T::kBoxBytes);
#pragma unroll
  for (int b = 0; b < T::kRows / T::kHalf; ++b)
    if (b * T::kHalf < work.rows) load_weights<T::kFormat>(p, smem.w[stage][b], full, k, row + b * T::kHalf);
}

// First product: all threads gather tokens, the first one asks for weights, too.
template <typename T>
__device__ __forceinline__ void tile_produce_gathered(const TileParams& p, typename T::Smem& smem) {
  constexpr int kCopies = T::kTokens / T::kStep;
  const int thread = threadIdx.x % T::kGroup, chunk = thread % 8;
  const uint32_t x = hopper::smem_address(smem.x[0]) + thread / 8 * 128 + ((chunk ^ (thread / 8 % 8)) << 4);
  const TileList<T> list(p);
  int stage = 0, parity = 1;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    const TileWork work = list(p, item);
    if (work.first_row >= p.out_rows) continue;
    const int steps = (work.share.count + T::kStep - 1) / T::kStep;
    uint32_t source[kCopies];  // in chunks of 16 bytes
                               // Places past the share repeat its last row: their columns are never stored.
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int place = work.share.first + min(i * T::kStep + thread / 8, work.share.count - 1);
      source[i] = static_cast<uint32_t>(p.row_at[place]) * (p.columns / 8) + chunk;
    }
    for (int k = 0; k < p.columns; k += T::kDepth) {
      hopper::mbarrier_wait(&smem.empty[stage], parity);
      if (thread == 0) tile_load_weights<T>(p, smem, work, k, stage);
      const auto* chunks = reinterpret_cast<const uint4*>(p.x) + k / 8;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        if (i < steps) hopper::copy_16(x + stage * T::kTokenBytes + i * 2048, chunks + source[i]);
      hopper::mbarrier_arrive_after_copies(&smem.full[stage]);
      if (++stage == T::kStages) stage = 0, parity ^= 1;
    }
  }
}

// Second product: one thread deals items and asks for their weights. These depend on the routing alone, so
// the first ones come while the first product ends.
template <typename T>
__device__ __forceinline__ void tile_produce_weights(const TileParams& p, typename T::Smem& smem) {
  const TileList<T> list(p);
  TileTurn turn{smem.queue};
  int stage = 0, parity = 1;
  for (int item = blockIdx.x; item < list.items;) {
    const TileWork work = list(p, item);
    turn.give(work);
    const TileDraw draw(p, item);
    for (int k = 0; k < p.columns && work.first_row < p.out_rows; k += T::kDepth) {
      hopper::mbarrier_wait(&smem.empty[stage], parity);
      tile_load_weights<T>(p, smem, work, k, stage);
      if (++stage == T::kStages) stage = 0, parity ^= 1;
    }
    item = draw.next(p, list.items);
  }
  turn.give({});
}

// Another one asks for hidden rows, once the first product has stored them.
template <typename T>
__device__ __forceinline__ void tile_produce_hidden(const TileParams& p, typename T::Smem& smem) {
  constexpr int kBoxBytes = T::kStep * T::kDepth * 2;
  const bool begins_early = p.counter != nullptr;
  if (!begins_early) hopper::wait_for_previous_kernel();
  int stage = 0, parity = 1;
  for (TileTurn turn{smem.queue};; ++turn.turn) {
    const TileWork work = turn.take();
    turn.give_back();
    if (work.rows == 0) break;
    if (work.first_row >= p.out_rows) continue;
    if (begins_early) wait_for_share(p, work.share_at);
    const int boxes = (work.share.count + T::kStep - 1) / T::kStep;
    for (int k = 0; k < p.columns; k += T::kDepth) {
      hopper::mbarrier_wait(&smem.empty[stage], parity);
      hopper::mbarrier_arrive_expect(&smem.full[stage], boxes * kBoxBytes);
      for (int b = 0; b < boxes; ++b)
        hopper::tma_load_2d(smem.x[stage] + b * kBoxBytes, &p.tokens, &smem.full[stage], k,
                            work.share.first + b * T::kStep);
      if (++stage == T::kStages) stage = 0, parity ^= 1;
    }
  }
  // All of the first product is stored, but whoever waits for this kernel relies on the one before being
  // over.
  if (begins_early) hopper::wait_for_previous_kernel();
}

template <typename T>
__device__ __forceinline__ void tile_produce(const TileParams& p, typename T::Smem& smem) {
  const int thread = threadIdx.x % T::kGroup;
  if constexpr (T::kFirst)
    tile_produce_gathered<T>(p, smem);
  else if (thread == 0)
    tile_produce_weights<T>(p, smem);
  else if (thread == 32)
    tile_produce_hidden<T>(p, smem);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// As swiglu(), without the branches of an exact division.
__device__ __forceinline__ float swiglu_fast(float gate, float up, const TileParams& p) {
  const float g = fminf(gate, p.limit), u = fminf(fmaxf(up, -p.limit), p.limit);
  return __fdividef((u + p.beta) * g, 1.0f + __expf(-p.alpha * g));
}

// Four 8 x 8 tiles of bf16, each with tokens in its columns: lane c of every four gets all 8 rows of tile c
// for its token, by way of 512 bytes of shared memory. Bank conflicts are swizzled away.
__device__ __forceinline__ uint4 transpose_tiles(uint32_t stage, const uint32_t (&tiles)[4]) {
  const int lane = threadIdx.x % 32;
  const auto place = [&](int token, int tile) { return stage + token * 64 + ((tile ^ (token / 2)) << 4); };
  hopper::stmatrix_x4_transposed(place(lane % 8, lane / 8), tiles);
  __syncwarp();
  return hopper::load_shared(place(lane / 4, lane % 4));
}

// Stores a warpgroup's rows of a tile: tokens come in columns and leave in rows, 16 bytes for each lane.
template <typename T, int kN, int kBlocks>
__device__ __forceinline__ void tile_store(const TileParams& p, typename T::Smem& smem,
                                           const float (&d)[kBlocks][kN / 2], const Share& share,
                                           int first_row) {
  // Of the four 8 x 8 tiles of a turn: those of one block of rows and 8 tokens, and how many such there are.
  constexpr int kTiles = T::kFirst ? 1 : 2, kTokenGroups = 4 / kTiles / kBlocks;
  const int warp = threadIdx.x % T::kGroup / 32, lane = threadIdx.x % 32;
  const int mine = lane % 4, token_group = mine / kTiles / kBlocks, block = mine / kTiles % kBlocks;
  const int row = first_row + block * 64 + warp * 16, channel = T::kFirst ? row / 2 : row + mine % 2 * 8;
  __nv_bfloat16* out = p.out + int64_t{share.first} * p.out_columns + channel;
  const bool inside = row < p.out_rows;
  const uint32_t stage = hopper::smem_address(smem.transpose[threadIdx.x / 32][0]);
#pragma unroll
  for (int j = 0; j < kN / 8; j += kTokenGroups) {
    uint32_t tiles[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tokens = j + i / kTiles / kBlocks;
      const int at = 4 * (tokens < kN / 8 ? tokens : kN / 8 - 1);  // past the width: never stored
      const float(&v)[kN / 2] = d[i / kTiles % kBlocks];
      if constexpr (T::kFirst)
        tiles[i] = pack_bf16(swiglu_fast(v[at], v[at + 2], p), swiglu_fast(v[at + 1], v[at + 3], p));
      else
        tiles[i] = pack_bf16(v[at + i % 2 * 2], v[at + i % 2 * 2 + 1]);
    }
    const uint4 v = transpose_tiles(stage + j / kTokenGroups % T::kTransposes * 512, tiles);
    const int token = (j + token_group) * 8 + lane / 4;
    if (token < share.count && inside) *reinterpret_cast<uint4*>(out + int64_t{token} * p.out_columns) = v;
  }
}

// One warpgroup's rows of a tile, kBlocks blocks of 64.
template <typename T, int kN, int kBlocks>
__device__ __forceinline__ void tile_consume(const TileParams& p, typename T::Smem& smem,
                                             const TileWork& work, int& stage, int& parity) {
  // Large tiles queue a stage's products before they wait for those of the stage before. Small ones wait for
  // memory: they give each stage back at once. Small tiles of cells wait for products more than for memory.
  constexpr bool kAhead = kBlocks == 2 && (T::kSmallAhead ? kN <= 48 : kN > 64);
  const int group = threadIdx.x / T::kGroup, lane = threadIdx.x % 32;
  Products<T::kFormat, kN, kBlocks> products;
  products.clear();
  uint64_t* previous = nullptr;
  for (int k = 0; k < p.columns; k += T::kDepth) {
    hopper::mbarrier_wait(&smem.full[stage], parity);
    if constexpr (T::kFirst) hopper::fence_async_shared();  // the gathered rows are ordinary copies
    products.multiply(smem.w[stage][0] + group * kBlocks * 4 * kStageCellBytes<T::kFormat>,
                      hopper::wgmma_descriptor(smem.x[stage]), [&] {
                        if (kAhead && k > 0 && lane == 0) hopper::mbarrier_arrive(previous);
                      });
    previous = &smem.empty[stage];
    if constexpr (!kAhead) {
      hopper::wgmma_wait<0>();
      if (lane == 0) hopper::mbarrier_arrive(previous);
    }
    if (++stage == T::kStages) stage = 0, parity ^= 1;
  }
  products.finish();
  if (kAhead && lane == 0) hopper::mbarrier_arrive(previous);
  tile_store<T, kN, kBlocks>(p, smem, products.d, work.share, work.first_row + group * kBlocks * 64);
}

template <typename T>
__device__ __forceinline__ void tile_consume_any(const TileParams& p, typename T::Smem& smem,
                                                 const TileWork& work, int& stage, int& parity) {
  if (work.first_row >= p.out_rows) return;
  T::with_width(work.share.count, [&]<int kN>() {
    if (work.rows > T::kHalf)
      tile_consume<T, kN, 2>(p, smem, work, stage, parity);
    else
      tile_consume<T, kN, 1>(p, smem, work, stage, parity);
  });
}

// All of this CTA's: those of the first product in turn, those of the second one as they are dealt.
template <typename T>
__device__ __forceinline__ void tile_consume_all(const TileParams& p, typename T::Smem& smem) {
  int stage = 0, parity = 0;
  if constexpr (T::kFirst) {
    const TileList<T> list(p);
    for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
      const TileWork work = list(p, item);
      tile_consume_any<T>(p, smem, work, stage, parity);
      if (p.next_may_start) announce_tile<T>(p, work);
    }
  } else {
    for (TileTurn turn{smem.queue};; ++turn.turn) {
      const TileWork work = turn.take();
      __syncwarp();
      if (threadIdx.x % 32 == 0) turn.give_back();
      if (work.rows == 0) return;
      tile_consume_any<T>(p, smem, work, stage, parity);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1) tile_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ uint8_t smem_bytes[];
  auto& smem =
      *reinterpret_cast<typename T::Smem*>((reinterpret_cast<uintptr_t>(smem_bytes) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&p.w);
    for (int s = 0; s < T::kStages; ++s) {
      hopper::mbarrier_init(&smem.full[s], T::kFirst ? 1 + T::kGroup : 2);
      hopper::mbarrier_init(&smem.empty[s], 8);
    }
    smem.queue.init();
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  if constexpr (T::kFirst) hopper::wait_for_previous_kernel();
  // Not before the wait: the second product reads the routing as soon as it starts, and so does the sum.
  if (p.next_may_start) hopper::let_next_kernel_start();
  if (threadIdx.x / T::kGroup == 2) {
    hopper::shrink_registers<T::kProducerRegisters>();
    tile_produce<T>(p, smem);
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    tile_consume_all<T>(p, smem);
  }
}

}  // namespace sparrow::ops::cuda
