// SPDX-License-Identifier: Apache-2.0
// The kernel: persistent CTAs, tiles of 128 rows by kN columns. A warp feeds a ring of 64 columns of x and w
// through the copy engine; two warpgroups hold 64 rows each. While a tile's first products run, the tile
// before it is finished and stored: it has registers of its own.
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
  // Sums of two tiles, where there are registers for them.
  static constexpr bool kOverlaps = kN <= 192 && kEnd != TowerEnd::kResidual;

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

// x times the share of a normal distribution below it, as the CPU computes it (ops/cpu/vision_simd.h), with
// two terms less: what they add is far below bf16.
__device__ __forceinline__ float gelu(float x) {
  constexpr float kTerms[] = {4.671402928e-01f,  3.354344368e-01f,  1.627891005e-01f,  4.214063951e-02f,
                              -2.856785048e-03f, -5.141033626e-03f, -1.470257775e-04f, 7.073091030e-04f};
  constexpr float kRootHalf = 0.707106781f, kHalfLog2e = 0.721347520f;
  const float t = __fdividef(1.0f, fmaf(0.45f * kRootHalf, fabsf(x), 1.0f)), u = fmaf(2.0f, t, -1.0f);
  const float falling = exp2_fast(x * x * -kHalfLog2e);
  float sum = kTerms[7];
#pragma unroll
  for (int i = 6; i >= 0; --i) sum = fmaf(sum, u, kTerms[i]);
  const float tail = 0.5f * t * falling * sum;
  return x * (x > 0 ? 1.0f - tail : tail);
}

template <typename T>
struct ProductConsumer {
  const TowerProductArgs& p;
  typename T::Smem& smem;
  int wg, warp, lane;
  int count = 0;         // stages queued so far
  uint4 residual[2][2];  // of two chunks in turn, this thread's two rows

  __device__ void queue(float (&d)[T::kSums], bool first) {
    const int stage = count % T::kStages;
    hopper::mbarrier_wait(&smem.full[stage], count / T::kStages & 1);
    const uint64_t x = hopper::wgmma_descriptor(smem.x[stage] + wg * T::kXBytes / 2);
    const uint64_t w = hopper::wgmma_descriptor(smem.w[stage]);
    hopper::wgmma_fence();
#pragma unroll
    for (int s = 0; s < T::kDepth / 16; ++s)
      hopper::wgmma_wide<T::kN>(d, x + 2 * s, w + 2 * s, s > 0 || !first);
    hopper::wgmma_commit();
    ++count;
  }
  // Of the stage queued `back` before the last.
  __device__ void release(int back) const {
    if (lane == 0) hopper::mbarrier_arrive(&smem.empty[(count - 1 - back) % T::kStages]);
  }

  __device__ int row_of(const ProductTile& tile, int h) const {
    return tile.row + 64 * wg + 16 * warp + lane / 4 + 8 * h;
  }
  // Four lanes have eight columns each of a row's chunk, where they load and store.
  __device__ bool is_there(int row, int column) const {
    return row < p.rows && column < p.n;
  }

  template <int kChunk>
  __device__ void load_residual(const ProductTile& tile) {
    if constexpr (T::kEnd == TowerEnd::kResidual && kChunk < T::kChunks) {
      const int column = tile.column + kChunk * T::kChunkColumns + lane % 4 * 8;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = row_of(tile, h);
        residual[kChunk % 2][h] =
            hopper::load_global_if(is_there(row, column), p.residual + int64_t{row} * p.n + column);
      }
    }
  }

  __device__ void finish(float& a, float& b, int row, int column, uint32_t add) const {
    if constexpr (T::kEnd == TowerEnd::kGelu) a = gelu(a), b = gelu(b);
    if constexpr (T::kEnd == TowerEnd::kResidual) {
      const float2 r = unpack_bf16(add);
      a += r.x, b += r.y;
    }
    if constexpr (T::kEnd == TowerEnd::kHeads) {
      if (column >= p.n / 3 * 2 || row >= p.rows) return;
      const float2 turn = __ldg(p.rotary + int64_t{row} * (kTowerHeadDim / 2) + column % kTowerHeadDim / 2);
      const float x = a;
      a = x * turn.x - b * turn.y;
      b = b * turn.x + x * turn.y;
    }
  }

  template <int kChunk>
  __device__ void store_chunk(const float (&d)[T::kSums], const ProductTile& tile) {
    load_residual<kChunk + 1>(tile);
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
        finish(a, b, row, first + 8 * i + 2 * quarter, words[i]);
        words[i] = pack_bf16(a, b);
      }
      transpose_quad(words);
      __nv_bfloat16* const out = p.out + (T::kEnd == TowerEnd::kHeads ? place_in_tiles(p.rows, row, column)
                                                                      : int64_t{row} * p.n + column);
      hopper::store_global_if(is_there(row, column), out, make_uint4(words[0], words[1], words[2], words[3]));
    }
  }

  template <int kChunk = 0>
  __device__ void store(const float (&d)[T::kSums], const ProductTile& tile) {
    if constexpr (kChunk == 0) load_residual<0>(tile);
    if constexpr (kChunk < T::kChunks) {
      store_chunk<kChunk>(d, tile);
      store<kChunk + 1>(d, tile);
    }
  }

  // Multiplies step `kChunk` and stores that chunk of the tile before.
  template <int kChunk = 0>
  __device__ void multiply_and_store(float (&d)[T::kSums], int steps, const float (&last)[T::kSums],
                                     const ProductTile& last_tile) {
    if constexpr (kChunk == 0) load_residual<0>(last_tile);
    if constexpr (kChunk < T::kChunks) {
      if (kChunk < steps) {
        queue(d, kChunk == 0);
        hopper::wgmma_wait<1>();
        if (kChunk > 0) release(1);
      }
      store_chunk<kChunk>(last, last_tile);
      multiply_and_store<kChunk + 1>(d, steps, last, last_tile);
    }
  }
  __device__ void multiply(float (&d)[T::kSums], int first, int steps) {
    for (int step = first; step < steps; ++step) {
      queue(d, step == 0);
      hopper::wgmma_wait<1>();
      if (step > 0) release(1);
    }
    hopper::wgmma_wait<0>();
    hopper::wgmma_pin(d);
    release(0);
  }

  __device__ void consume() {
    const ProductTiles<T> tiles(p);
    const int steps = (p.k + T::kDepth - 1) / T::kDepth, stride = static_cast<int>(gridDim.x);
    int i = blockIdx.x;
    if constexpr (T::kOverlaps) {
      float even[T::kSums], odd[T::kSums];
      multiply(even, 0, steps);
      while (true) {
        if (i + stride >= tiles.count) return store(even, tiles(i));
        multiply_and_store(odd, steps, even, tiles(i));
        multiply(odd, T::kChunks, steps);
        i += stride;
        if (i + stride >= tiles.count) return store(odd, tiles(i));
        multiply_and_store(even, steps, odd, tiles(i));
        multiply(even, T::kChunks, steps);
        i += stride;
      }
    } else {
      float d[T::kSums];
      for (; i < tiles.count; i += stride) {
        multiply(d, 0, steps);
        store(d, tiles(i));
      }
    }
  }
};

template <typename T>
__device__ void produce_product(const TowerProductArgs& p, const ProductMaps& maps, typename T::Smem& smem) {
  const ProductTiles<T> tiles(p);
  const int steps = (p.k + T::kDepth - 1) / T::kDepth;
  int count = 0;
  for (int i = blockIdx.x; i < tiles.count; i += static_cast<int>(gridDim.x)) {
    const ProductTile tile = tiles(i);
    for (int step = 0; step < steps; ++step, ++count) {
      const int stage = count % T::kStages;
      hopper::mbarrier_wait(&smem.empty[stage], (count / T::kStages & 1) ^ 1);
      hopper::mbarrier_arrive_expect(&smem.full[stage], T::kXBytes + T::kWBytes);
      hopper::tma_load_2d(smem.x[stage], &maps.x, &smem.full[stage], step * T::kDepth, tile.row);
      hopper::tma_load_2d(smem.w[stage], &maps.w, &smem.full[stage], step * T::kDepth, tile.column);
    }
  }
}

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
  hopper::wait_for_previous_kernel();
  if (wg == 0) {
    hopper::shrink_registers<T::kProducerRegisters>();
    if (threadIdx.x == 0) produce_product<T>(p, maps, smem);
  } else {
    hopper::grow_registers<T::kConsumerRegisters>();
    ProductConsumer<T>{p, smem, wg - 1, warp, lane}.consume();
  }
}

}  // namespace sparrow::ops::cuda
