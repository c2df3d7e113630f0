// SPDX-License-Identifier: Apache-2.0
// The kernel: persistent CTAs, tiles of 128 rows by kN columns. A warp feeds a ring of 64 columns of x and w
// through the copy engine; two warpgroups hold 64 rows each. One of them may be as many stages ahead as the
// ring has: while it finishes its rows, the other multiplies.
#pragma once

#include "ops/cuda/vision/product.h"
#include "ops/cuda/vision/tiles.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"
#include "sm90/wgmma_wide.cuh"

namespace sparrow::ops::cuda {

template <int kN_, TowerEnd kEnd_>
struct ProductTraits {
  static constexpr int kN = kN_, kM = 128, kDepth = 64, kSums = kN / 2;
  static constexpr TowerEnd kEnd = kEnd_;
  static constexpr int kThreads = 384, kMinCtasPerSm = 1;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 504);
  static constexpr int kXBytes = kM * kDepth * 2, kWBytes = kN * kDepth * 2;
  static constexpr int kStages = (226 * 1024 - 1024) / (kXBytes + kWBytes);
  static constexpr int kChunkColumns = 32, kChunks = kN / kChunkColumns;  // what is finished at a time

  struct Smem {
    uint8_t x[kStages][kXBytes];
    uint8_t w[kStages][kWBytes];
    uint64_t full[kStages], empty[kStages];
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;  // the swizzle wants 1024-byte alignment
  static_assert(kSmemBytes <= 227 * 1024);
};

struct ProductMaps {
  CUtensorMap x, w;
};

// The first row and column of a CTA's next tile. Tiles of the same rows follow each other: x is read from
// memory once, and w stays in the L2.
struct ProductTile {
  int row, column;
};

template <typename T>
struct ProductTiles {
  int columns, count;

  __device__ explicit ProductTiles(const TowerProductArgs& p)
      : columns((p.n + T::kN - 1) / T::kN), count((p.rows + T::kM - 1) / T::kM * columns) {}
  __device__ ProductTile operator()(int i) const { return {i / columns * T::kM, i % columns * T::kN}; }
};

// Word i of lane q (of four) and word q of lane i change places.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
  uint32_t a = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 1), b = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 1);
  if (odd)
    v[0] = a, v[2] = b;
  else
    v[1] = a, v[3] = b;
  a = __shfl_xor_sync(~0u, high ? v[0] : v[2], 2), b = __shfl_xor_sync(~0u, high ? v[1] : v[3], 2);
  if (high)
    v[0] = a, v[1] = b;
  else
    v[2] = a, v[3] = b;
}

// x times the share of a normal distribution below it. That share is taken from the tail, where nothing
// cancels: erfc(z) e^(z^2) / 2 is t, 1 / (1 + 0.45 z), times a polynomial in t, to 1e-5 (through its values
// at six Chebyshev nodes).
__device__ __forceinline__ float gelu(float x) {
  constexpr float kTerms[] = {1.269690786e-01f, 1.259942240e-01f, 1.237024498e-01f,
                              4.571620751e-02f, 1.452393905e-01f, -6.762556864e-02f};
  constexpr float kRootHalf = 0.707106781f, kHalfLog2e = 0.721347520f;
  float t;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.45f * kRootHalf, fabsf(x), 1.0f)));
  float sum = kTerms[5];
#pragma unroll
  for (int i = 4; i >= 0; --i) sum = fmaf(sum, t, kTerms[i]);
  const float tail = t * exp2_fast(x * (x * -kHalfLog2e)) * sum;
  return fmaf(-fabsf(x), tail, fmaxf(x, 0.0f));
}

template <typename T>
struct ProductConsumer {
  const TowerProductArgs& p;
  typename T::Smem& smem;
  int wg, warp, lane;
  int count = 0;  // stages multiplied so far
  // What the end of two chunks in turn needs, of this thread's two rows: on its way before it is wanted.
  uint4 residual[2][2];
  float2 turns[2][2][4];

  __device__ void multiply(float (&d)[T::kSums], int steps) {
    const auto release = [&](int at) {
      if (lane == 0) hopper::mbarrier_arrive(&smem.empty[at % T::kStages]);
    };
    for (int step = 0; step < steps; ++step, ++count) {
      const int stage = count % T::kStages;
      hopper::mbarrier_wait(&smem.full[stage], count / T::kStages & 1);
      const uint64_t x = hopper::wgmma_descriptor(smem.x[stage] + wg * T::kXBytes / 2);
      const uint64_t w = hopper::wgmma_descriptor(smem.w[stage]);
      hopper::wgmma_fence();
#pragma unroll
      for (int s = 0; s < T::kDepth / 16; ++s)
        hopper::wgmma_wide<T::kN>(d, x + 2 * s, w + 2 * s, s > 0 || step > 0);
      hopper::wgmma_commit();
      hopper::wgmma_wait<1>();
      if (step > 0) release(count - 1);
    }
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(d);
    release(count - 1);
  }

  __device__ int row_of(const ProductTile& tile, int h) const {
    return tile.row + 64 * wg + 16 * warp + lane / 4 + 8 * h;
  }
  // Four lanes have eight columns each of a row's chunk, where they load and store.
  __device__ bool is_there(int row, int column) const {
    return row < p.rows && column < p.n;
  }
  __device__ bool is_turned(int row, int column) const {
    return row < p.rows && column < p.n / 3 * 2;
  }

  template <int kChunk>
  __device__ void prefetch(const ProductTile& tile) {
    if constexpr (kChunk < T::kChunks) {
      const int first = tile.column + kChunk * T::kChunkColumns, quarter = lane % 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(tile, h);
        if constexpr (T::kEnd == TowerEnd::kResidual)
          residual[kChunk % 2][h] = hopper::load_global_if(
              is_there(row, first + 8 * quarter), p.residual + int64_t{row} * p.n + first + 8 * quarter);
        if constexpr (T::kEnd == TowerEnd::kHeads)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = first + 8 * i + 2 * quarter;
            turns[kChunk % 2][h][i] = {1, 0};
            if (is_turned(row, column))
              turns[kChunk % 2][h][i] =
                  __ldg(p.rotary + int64_t{row} * (kTowerHeadDim / 2) + column % kTowerHeadDim / 2);
          }
      }
    }
  }

  __device__ static void finish(float& a, float& b, uint32_t residual, const float2& turn) {
    if constexpr (T::kEnd == TowerEnd::kGelu) a = gelu(a), b = gelu(b);
    if constexpr (T::kEnd == TowerEnd::kResidual) {
      const float2 r = unpack_bf16(residual);
      a += r.x, b += r.y;
    }
    if constexpr (T::kEnd == TowerEnd::kHeads) {
      const float x = a;
      a = x * turn.x - b * turn.y;
      b = b * turn.x + x * turn.y;
    }
  }

  template <int kChunk = 0>
  __device__ void store(const float (&d)[T::kSums], const ProductTile& tile) {
    if constexpr (kChunk < T::kChunks) {
      prefetch<kChunk + 1>(tile);
      store_chunk<kChunk>(d, tile);
      store<kChunk + 1>(d, tile);
    }
  }

  template <int kChunk>
  __device__ void store_chunk(const float (&d)[T::kSums], const ProductTile& tile) {
    const int first = tile.column + kChunk * T::kChunkColumns, quarter = lane % 4;
    float2 bias[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = first + 8 * i + 2 * quarter;
      bias[i] = column < p.n ? __ldg(reinterpret_cast<const float2*>(p.bias + column)) : float2{0, 0};
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = row_of(tile, h), column = first + 8 * quarter;
      uint32_t words[4] = {};
      if constexpr (T::kEnd == TowerEnd::kResidual) {
        const uint4& r = residual[kChunk % 2][h];
        words[0] = r.x, words[1] = r.y, words[2] = r.z, words[3] = r.w;
        transpose_quad(words);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (4 * kChunk + i) + 2 * h;
        float a = d[at] + bias[i].x, b = d[at + 1] + bias[i].y;
        finish(a, b, words[i], turns[kChunk % 2][h][i]);
        words[i] = pack_bf16(a, b);
      }
      transpose_quad(words);
      __nv_bfloat16* const out = p.out + (T::kEnd == TowerEnd::kHeads ? place_in_tiles(p.rows, row, column)
                                                                      : int64_t{row} * p.n + column);
      hopper::store_global_if(is_there(row, column), out, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }

  __device__ void consume() {
    const ProductTiles<T> tiles(p);
    const int steps = (p.k + T::kDepth - 1) / T::kDepth;
    float d[T::kSums];
    for (int i = blockIdx.x; i < tiles.count; i += static_cast<int>(gridDim.x)) {
      prefetch<0>(tiles(i));
      multiply(d, steps);
      store(d, tiles(i));
    }
  }
};

template <typename T>
struct ProductProducer {
  const TowerProductArgs& p;
  const ProductMaps& maps;
  typename T::Smem& smem;

  __device__ void load_w(const ProductTile& tile, int step, int stage) const {
    hopper::mbarrier_arrive_expect(&smem.full[stage], T::kXBytes + T::kWBytes);
    hopper::tma_load_2d(smem.w[stage], &maps.w, &smem.full[stage], step * T::kDepth, tile.column);
  }

  // The first stages' weights are on their way while the kernel before ends.
  __device__ void produce() const {
    const ProductTiles<T> tiles(p);
    const int steps = (p.k + T::kDepth - 1) / T::kDepth, early = min(steps, T::kStages);
    for (int step = 0; step < early; ++step) load_w(tiles(blockIdx.x), step, step);
    hopper::wait_for_previous_kernel();
    int count = 0;
    for (int i = blockIdx.x; i < tiles.count; i += static_cast<int>(gridDim.x)) {
      const ProductTile tile = tiles(i);
      for (int step = 0; step < steps; ++step, ++count) {
        const int stage = count % T::kStages;
        hopper::mbarrier_wait(&smem.empty[stage], (count / T::kStages & 1) ^ 1);
        if (count >= early) load_w(tile, step, stage);
        hopper::tma_load_2d(smem.x[stage], &maps.x, &smem.full[stage], step * T::kDepth, tile.row);
      }
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kMinCtasPerSm)
    product_kernel(const __grid_constant__ TowerProductArgs p, const __grid_constant__ ProductMaps maps) {
  extern __shared__ unsigned char shared_bytes[];
  auto& smem =
      *reinterpret_cast<typename T::Smem*>((reinterpret_cast<uintptr_t>(shared_bytes) + 1023) / 1024 * 1024);
  const int wg = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    hopper::prefetch_tensor_map(&maps.x), hopper::prefetch_tensor_map(&maps.w);
    for (int s = 0; s < T::kStages; ++s)
      hopper::mbarrier_init(&smem.full[s], 1), hopper::mbarrier_init(&smem.empty[s], 8);
    hopper::mbarrier_init_fence();
  }
  __syncthreads();
  hopper::let_next_kernel_start();
  if (wg == 0) {
    hopper::shrink_registers<T::kProducerRegisters>();
    if (threadIdx.x == 0) ProductProducer<T>{p, maps, smem}.produce();
  } else {
    hopper::wait_for_previous_kernel();
    hopper::grow_registers<T::kConsumerRegisters>();
    ProductConsumer<T>{p, smem, wg - 1, warp, lane}.consume();
  }
}

}  // namespace sparrow::ops::cuda
