// SPDX-License-Identifier: Apache-2.0
// The first product of many rows with e4m3 tokens: folded rows of MXFP8 (mx/fold.h) from registers, tokens
// from shared memory, at twice the rate of bf16. The parts are those of tile.cuh; a stage has 128 columns.
//
// The tensor cores' sums keep about 13 bits, so they are promoted: each 512 columns a sum is added to an
// f32 total. Totals take as many registers as sums do, hence tiles of 128 weight rows.
#pragma once

#include "ops/cuda/moe/many/tile.cuh"
#include "ops/cuda/mx/e4m3.cuh"

namespace sparrow::ops::cuda {

template <int... kWidths>
struct E4m3Traits {
  static constexpr bool kFirst = true;
  static constexpr MatrixFormat kFormat = MatrixFormat::kMxfp8;
  static constexpr int kRows = 128, kTokens = std::max({kWidths...}), kStep = RouteMany::kStep;
  static constexpr int kDepth = kE4m3Columns, kCells = kDepth / kCellColumns;
  static constexpr int kGroup = 128, kThreads = 3 * kGroup, kTransposes = 2;
  static constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;
  static constexpr int kBoxBytes = kRows / kCellRows * cell_bytes(kFormat), kTokenBytes = kTokens * kDepth;
  static constexpr int kOtherBytes = 8 * (kTransposes * 512 + kTokens * 4);
  static constexpr int kStages = (227 * 1024 - 1024 - kOtherBytes) / (kCells * kBoxBytes + kTokenBytes + 16);
  struct Smem {
    uint8_t x[kStages][kTokenBytes];
    uint8_t w[kStages][kCells][kBoxBytes];
    uint8_t transpose[8][kTransposes][512];  // of each consumer warp
    float scales[8][kTokens];                // of the tile's tokens, for each consumer warp
    uint64_t full[kStages], empty[kStages];
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;
  static_assert(kSmemBytes <= 227 * 1024);

  template <typename Visit>
  static __device__ __forceinline__ void with_width(int tokens, const Visit& visit) {
    visit_width<kWidths...>(tokens, visit);
  }
};

// A CTA's next: kRows weight rows of one expert times one share of its tokens.
template <typename T>
struct E4m3List {
  int m_tiles, items;

  __device__ __forceinline__ explicit E4m3List(const TileParams& p) {
    m_tiles = (p.out_rows + T::kRows - 1) / T::kRows, items = *p.num_shares * m_tiles;
  }
  __device__ __forceinline__ TileWork operator()(const TileParams& p, int item) const {
    return {p.shares[item / m_tiles], item % m_tiles * T::kRows, T::kRows, 0};
  }
};

template <typename T>
__device__ __forceinline__ void e4m3_produce(const E4m3TileParams& p, typename T::Smem& smem) {
  constexpr int kCopies = T::kTokens / T::kStep;
  const int thread = threadIdx.x % T::kGroup, chunk = thread % 8;
  const uint32_t x = hopper::smem_address(smem.x[0]) + thread / 8 * 128 + ((chunk ^ (thread / 8 % 8)) << 4);
  const E4m3List<T> list(p);
  int stage = 0, parity = 1;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    const TileWork work = list(p, item);
    const int w_row = work.share.expert * p.out_rows + work.first_row;
    const int steps = (work.share.count + T::kStep - 1) / T::kStep;
    uint32_t source[kCopies];  // in chunks of 16 bytes
                               // Places past the share repeat its last row: their columns are never stored.
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int place = work.share.first + min(i * T::kStep + thread / 8, work.share.count - 1);
      source[i] = static_cast<uint32_t>(p.row_at[place]) * (p.columns / 16) + chunk;
    }
    for (int k = 0; k < p.columns; k += T::kDepth) {
      uint64_t* full = &smem.full[stage];
      hopper::mbarrier_wait(&smem.empty[stage], parity);
      if (thread == 0) {
        hopper::mbarrier_arrive_expect(full, T::kCells * T::kBoxBytes);
        for (int c = 0; c < T::kCells; ++c)
          load_weights<T::kFormat>(p, smem.w[stage][c], full, k + c * kCellColumns, w_row);
      }
      const auto* chunks = reinterpret_cast<const uint4*>(p.rounded.codes) + k / 16;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        if (i < steps)
          hopper::copy_16(x + stage * T::kTokenBytes + i * T::kStep * T::kDepth, chunks + source[i]);
      hopper::mbarrier_arrive_after_copies(full);
      if (++stage == T::kStages) stage = 0, parity ^= 1;
    }
  }
}

// A warpgroup's sums. While some columns of a stage are multiplied, the next are decoded, those of the next
// stage included.
template <typename T, int kN>
struct E4m3Products : Sums<kN, 1> {
  using Sums<kN, 1>::d;
  static constexpr int kSteps = 2, kTurns = T::kDepth / 32 / kSteps;  // steps of 32 columns, of a turn
  static_assert(kTurns == 2);
  uint4 codes[kTurns][kSteps];
  uint32_t a[kTurns][kSteps][4];

  // All codes of a stage at once: what waits for one of them waits for all. `w`: this lane's, in its warp's
  // first cell.
  __device__ __forceinline__ void load(uint32_t w) {
#pragma unroll
    for (int step = 0; step < kTurns * kSteps; ++step)
      codes[step / kSteps][step % kSteps] = hopper::load_shared(w + step / 2 * T::kBoxBytes + step % 2 * 512);
  }
  // The last products of this turn must be over.
  template <int kTurn>
  __device__ __forceinline__ void decode() {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint4& from = codes[kTurn][s];
      e4m3_operands(from.x, from.z, a[kTurn][s][0], a[kTurn][s][2]);
      e4m3_operands(from.y, from.w, a[kTurn][s][1], a[kTurn][s][3]);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) hopper::wgmma_pin(a[kTurn][s]);
  }
  // Queues a turn that is decoded. accumulate 0: sums start anew.
  template <int kTurn>
  __device__ __forceinline__ void multiply(uint64_t x, int accumulate) {
    hopper::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      hopper::wgmma_e4m3<kN>(d[0], a[kTurn][s], x + (kTurn * kSteps + s) * 2, s > 0 ? 1 : accumulate);
    hopper::wgmma_commit();
  }
};

// The scales of rows g and g + 8 of this warp's cells: a folded row has one, and its first cell shows it.
__device__ __forceinline__ uint32_t folded_scales(uint32_t cell) {
  uint32_t bytes;
  asm volatile("ld.shared.u32 %0, [%1];"
               : "=r"(bytes)
               : "r"(cell + cell_code_bytes(MatrixFormat::kMxfp8) + threadIdx.x % 32 / 4 * 4)
               : "memory");
  return bytes;
}

// Each warp brings the scales of a share's tokens to a place of its own.
__device__ __forceinline__ void load_token_scales(const E4m3TileParams& p, const Share& share,
                                                  float* scales) {
  __syncwarp();
  for (int i = threadIdx.x % 32; i < share.count; i += 32)
    scales[i] = p.rounded.scales[p.row_at[share.first + i]];
  __syncwarp();
}

// One warpgroup's rows of a tile.
template <typename T, int kN>
__device__ __forceinline__ void e4m3_consume(const E4m3TileParams& p, typename T::Smem& smem,
                                             const TileWork& work, int& stage, int& parity) {
  const int group = threadIdx.x / T::kGroup, warp = threadIdx.x % T::kGroup / 32, lane = threadIdx.x % 32;
  float* const scales = smem.scales[threadIdx.x / 32];
  load_token_scales(p, work.share, scales);
  E4m3Products<T, kN> products;
  Sums<kN, 1> totals;
  products.clear();
  totals.clear();
  const auto load_stage = [&] {
    hopper::mbarrier_wait(&smem.full[stage], parity);
    hopper::fence_async_shared();  // the gathered rows are ordinary copies
    const uint32_t cell =
        hopper::smem_address(smem.w[stage][0]) + (group * 4 + warp) * cell_bytes(T::kFormat);
    products.load(cell + lane * 16);
    return cell;
  };
  const uint32_t row_scales = folded_scales(load_stage());
  products.template decode<0>();
  for (int k = 0; k < p.columns;) {
    const int end = min(k + kE4m3Promotion, p.columns);
    uint64_t* previous = nullptr;
    int accumulate = 0;
    do {
      const uint64_t x = hopper::wgmma_descriptor(smem.x[stage]);
      products.template multiply<0>(x, accumulate);
      hopper::wgmma_wait<1>();
      hopper::mbarrier_arrive_if(accumulate && lane == 0, previous);
      products.template decode<1>();
      products.template multiply<1>(x, 1);
      accumulate = 1;
      previous = &smem.empty[stage];
      if (++stage == T::kStages) stage = 0, parity ^= 1;
      k += T::kDepth;
      // The next stage's first operands are ready when this one's products end, also across a promotion.
      if (k < p.columns) load_stage();
      hopper::wgmma_wait<1>();
      products.template decode<0>();
    } while (k < end);
    products.finish();
    hopper::mbarrier_arrive_if(lane == 0, previous);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) totals.d[0][i] += products.d[0][i];
  }
  const float row_scale[2] = {folded_number(row_scales & 0xff), folded_number(row_scales >> 8 & 0xff)};
#pragma unroll
  for (int i = 0; i < kN / 2; ++i)
    totals.d[0][i] *= row_scale[i / 2 % 2] * scales[i / 4 * 8 + lane % 4 * 2 + i % 2];
  tile_store<T, kN, 1>(p, smem, totals.d, work.share, work.first_row + group * 64);
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1) e4m3_tile_kernel(const __grid_constant__ E4m3TileParams p) {
  extern __shared__ uint8_t smem_bytes[];
  auto& smem =
      *reinterpret_cast<typename T::Smem*>((reinterpret_cast<uintptr_t>(smem_bytes) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&p.w);
    for (int s = 0; s < T::kStages; ++s) {
      hopper::mbarrier_init(&smem.full[s], 1 + T::kGroup);
      hopper::mbarrier_init(&smem.empty[s], 8);
    }
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  hopper::wait_for_previous_kernel();
  if (threadIdx.x / T::kGroup == 2) {
    hopper::shrink_registers<T::kProducerRegisters>();
    e4m3_produce<T>(p, smem);
    return;
  }
  hopper::grow_registers<T::kConsumerRegisters>();
  const E4m3List<T> list(p);
  int stage = 0, parity = 0;
  for (int item = blockIdx.x; item < list.items; item += gridDim.x) {
    const TileWork work = list(p, item);
    T::with_width(work.share.count, [&]<int kN>() { e4m3_consume<T, kN>(p, smem, work, stage, parity); });
  }
}

}  // namespace sparrow::ops::cuda
