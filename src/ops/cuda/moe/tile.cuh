// SPDX-License-Identifier: Apache-2.0
// Products of many rows on wgmma: tiles of 256 weight rows (M) by up to 160 tokens of one expert (N),
// persistent CTAs. Weights are M so that a tile is as wide as its tokens are many, in steps of 16: an expert
// with 270 rows costs 288.
//
// A producer warpgroup fills a ring: weights by the copy engine; tokens by the copy engine where they lie in
// sorted order (hidden rows), by 16-byte copies of 128 threads where they are gathered (x), so that a
// permuted x never goes through memory. Two consumer warpgroups hold 128 weight rows each. Neighbouring CTAs
// work on the same tokens, an expert's tiles follow each other: both come from the L2.
#pragma once

#include <cuda_bf16.h>

#include "msa/sm90/ptx.cuh"
#include "msa/sm90/wgmma.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "ops/cuda/moe/route_many.cuh"
#include "ops/cuda/moe/wgmma_tokens.cuh"

namespace sparrow::ops::cuda {

struct TileParams {
  CUtensorMap w;       // [experts * out_rows, columns] in boxes of 128 rows by 64 columns
  CUtensorMap tokens;  // [places, columns] in boxes of 16 rows by 64 columns, second product only
  const __nv_bfloat16* x = nullptr;  // [rows, columns], first product only
  const int32_t* row_at = nullptr;   // place -> row of x
  const Share* shares = nullptr;
  const int32_t* num_shares = nullptr;
  __nv_bfloat16* out = nullptr;  // [places, out_columns]
  int columns = 0, out_rows = 0, out_columns = 0;
  float alpha = 0, limit = 0, beta = 0;
};

template <bool kFirst_>
struct TileTraits {
  static constexpr bool kFirst = kFirst_;  // gate and up: gathered rows in, activation out
  static constexpr int kRows = 256, kHalf = kRows / 2, kTokens = RouteMany::kTokens, kStep = 16, kDepth = 64;
  static constexpr int kStages = 4, kGroup = 128, kThreads = 3 * kGroup;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static_assert(kProducerRegisters + 2 * kConsumerRegisters <= 504 && kTokens <= 160);
  struct Smem {
    uint8_t w[kStages][kRows * kDepth * 2];
    uint8_t x[kStages][kTokens * kDepth * 2];
    uint64_t full[kStages], empty[kStages];
  };
  static constexpr int kSmemBytes = sizeof(Smem) + 1024;  // the swizzle wants 1024-byte alignment
};

__device__ __forceinline__ void copy_16(uint32_t smem, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(source) : "memory");
}
// An arrival when this thread's copies so far have landed.
__device__ __forceinline__ void arrive_after_copies(uint64_t* bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(msa::sm90::smem_address(bar))
               : "memory");
}
struct TileWork {
  Share share;
  int m_tile, width;  // width: tokens in whole steps
};

template <typename T>
__device__ __forceinline__ TileWork tile_work(const TileParams& p, int tile, int m_tiles) {
  const Share share = p.shares[tile / m_tiles];
  return {share, tile % m_tiles, (share.count + T::kStep - 1) / T::kStep * T::kStep};
}

template <typename T>
__device__ __forceinline__ void tile_produce(const TileParams& p, typename T::Smem& smem) {
  constexpr int kCopies = T::kTokens / 16;
  const int thread = threadIdx.x % T::kGroup, m_tiles = (p.out_rows + T::kRows - 1) / T::kRows;
  const int tiles = *p.num_shares * m_tiles, chunk = thread % 8;
  const uint32_t x =
      msa::sm90::smem_address(smem.x[0]) + thread / 8 * 128 + ((chunk ^ (thread / 8 % 8)) << 4);
  int stage = 0, parity = 1;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TileWork work = tile_work<T>(p, tile, m_tiles);
    const int w_row = work.share.expert * p.out_rows + work.m_tile * T::kRows, steps = work.width / T::kStep;
    const __nv_bfloat16* source[kCopies];
    if constexpr (T::kFirst) {
      // Places past the share repeat its last row: their columns are never stored.
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int place = work.share.first + min(i * 16 + thread / 8, work.share.count - 1);
        source[i] = p.x + int64_t{p.row_at[place]} * p.columns + chunk * 8;
      }
    }
    for (int k = 0; k < p.columns; k += T::kDepth) {
      uint64_t* full = &smem.full[stage];
      if (T::kFirst || thread == 0) msa::sm90::mbarrier_wait(&smem.empty[stage], parity);
      if (thread == 0) {
        constexpr int kBoxBytes = T::kStep * T::kDepth * 2;
        msa::sm90::mbarrier_arrive_expect(full, sizeof(smem.w[0]) + (T::kFirst ? 0 : steps * kBoxBytes));
        msa::sm90::tma_load_2d(smem.w[stage], &p.w, full, k, w_row);
        if constexpr (!T::kFirst)
          for (int b = 0; b < steps; ++b)
            msa::sm90::tma_load_2d(smem.x[stage] + b * kBoxBytes, &p.tokens, full, k,
                                   work.share.first + b * T::kStep);
      }
      if constexpr (T::kFirst) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
          if (i < steps) copy_16(x + stage * static_cast<int>(sizeof(smem.x[0])) + i * 2048, source[i] + k);
        arrive_after_copies(full);
      }
      if (++stage == T::kStages) stage = 0, parity ^= 1;
    }
  }
}

// Transposes an 8 x 8 tile of bf16 across the warp.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t v) {
  uint32_t t;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
  return t;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Four lanes hold word (lane % 4) of four vectors; lane c gets all four words of vector c.
__device__ __forceinline__ uint4 gather_words(const uint32_t (&v)[4]) {
  const int c = threadIdx.x % 4;
  uint32_t a[4], b[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // pairs of lanes one apart trade: lane bit 0 against vector bit 0
    const uint32_t got = __shfl_xor_sync(0xffffffff, c % 2 == 0 ? v[2 * i + 1] : v[2 * i], 1);
    a[2 * i] = c % 2 == 0 ? v[2 * i] : got;          // word of the even lane
    a[2 * i + 1] = c % 2 == 0 ? got : v[2 * i + 1];  // word of the odd lane
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // lanes two apart: lane bit 1 against vector bit 1
    const uint32_t got = __shfl_xor_sync(0xffffffff, c < 2 ? a[2 + i] : a[i], 2);
    b[i] = c < 2 ? a[i] : got;
    b[2 + i] = c < 2 ? got : a[2 + i];
  }
  return {b[0], b[1], b[2], b[3]};
}

// bf16 results of a tile's second product for 8 tokens: this lane's token (lane / 4) and 8 channels.
template <int kN>
__device__ __forceinline__ uint4 tile_vector(const float (&d)[2][kN / 2], int j) {
  uint32_t parts[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    parts[i] = transpose_8x8(pack_bf16(d[i / 2][4 * j + i % 2 * 2], d[i / 2][4 * j + i % 2 * 2 + 1]));
  return gather_words(parts);
}

// Stores a tile, tokens of 8 at a time: transposed in registers, whole sectors to memory.
template <typename T, int kN>
__device__ __forceinline__ void tile_store(const TileParams& p, const float (&d)[2][kN / 2],
                                           const TileWork& work) {
  const int group = threadIdx.x / T::kGroup, warp = threadIdx.x % T::kGroup / 32, lane = threadIdx.x % 32;
  const int first_row = work.m_tile * T::kRows + group * T::kHalf + warp * 16;  // and 64 further down
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const int token = j * 8 + lane / 4;
    __nv_bfloat16* row = p.out + int64_t{work.share.first + token} * p.out_columns;
    if constexpr (T::kFirst) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t h =
            transpose_8x8(pack_bf16(swiglu(d[m][4 * j], d[m][4 * j + 2], p.alpha, p.limit, p.beta),
                                    swiglu(d[m][4 * j + 1], d[m][4 * j + 3], p.alpha, p.limit, p.beta)));
        if (token < work.share.count && first_row + m * 64 < p.out_rows)
          *reinterpret_cast<uint32_t*>(row + (first_row + m * 64) / 2 + lane % 4 * 2) = h;
      }
    } else {
      const uint4 v = tile_vector<kN>(d, j);
      const int channel = first_row + lane % 4 / 2 * 64 + lane % 2 * 8;
      if (token < work.share.count && channel < p.out_rows) *reinterpret_cast<uint4*>(row + channel) = v;
    }
  }
}

template <typename T, int kN>
__device__ __forceinline__ void tile_consume(const TileParams& p, typename T::Smem& smem,
                                             const TileWork& work, int& stage, int& parity) {
  const int group = threadIdx.x / T::kGroup, lane = threadIdx.x % 32;
  float d[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN; ++i) d[i / (kN / 2)][i % (kN / 2)] = 0;
  for (int k = 0; k < p.columns; k += T::kDepth) {
    msa::sm90::mbarrier_wait(&smem.full[stage], parity);
    if constexpr (T::kFirst) msa::sm90::fence_async_shared();  // the gathered rows are ordinary copies
    const uint64_t a = msa::sm90::wgmma_descriptor(smem.w[stage] + group * T::kHalf * 128);
    const uint64_t b = msa::sm90::wgmma_descriptor(smem.x[stage]);
    msa::sm90::wgmma_fence();
#pragma unroll
    for (int s = 0; s < T::kDepth / 16; ++s) {
      wgmma_tokens<kN>(d[0], a + s * 2, b + s * 2, 1);
      wgmma_tokens<kN>(d[1], a + s * 2 + 64 * 128 / 16, b + s * 2, 1);
    }
    msa::sm90::wgmma_commit();
    msa::sm90::wgmma_wait<0>();
    msa::sm90::wgmma_pin(d[0]);
    msa::sm90::wgmma_pin(d[1]);
    if (lane == 0) msa::sm90::mbarrier_arrive(&smem.empty[stage]);
    if (++stage == T::kStages) stage = 0, parity ^= 1;
  }
  tile_store<T, kN>(p, d, work);
}

template <typename T>
__device__ __forceinline__ void tile_consume_all(const TileParams& p, typename T::Smem& smem) {
  const int m_tiles = (p.out_rows + T::kRows - 1) / T::kRows, tiles = *p.num_shares * m_tiles;
  int stage = 0, parity = 0;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const TileWork work = tile_work<T>(p, tile, m_tiles);
    switch (work.width / T::kStep) {
      case 1:
        tile_consume<T, 16>(p, smem, work, stage, parity);
        break;
      case 2:
        tile_consume<T, 32>(p, smem, work, stage, parity);
        break;
      case 3:
        tile_consume<T, 48>(p, smem, work, stage, parity);
        break;
      case 4:
        tile_consume<T, 64>(p, smem, work, stage, parity);
        break;
      case 5:
        tile_consume<T, 80>(p, smem, work, stage, parity);
        break;
      case 6:
        tile_consume<T, 96>(p, smem, work, stage, parity);
        break;
      case 7:
        tile_consume<T, 112>(p, smem, work, stage, parity);
        break;
      case 8:
        tile_consume<T, 128>(p, smem, work, stage, parity);
        break;
      case 9:
        tile_consume<T, 144>(p, smem, work, stage, parity);
        break;
      default:
        tile_consume<T, 160>(p, smem, work, stage, parity);
        break;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::kThreads, 1) tile_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ uint8_t smem_bytes[];
  auto& smem =
      *reinterpret_cast<typename T::Smem*>((reinterpret_cast<uintptr_t>(smem_bytes) + 1023) / 1024 * 1024);
  if (threadIdx.x == 0) {
    msa::sm90::prefetch_tensor_map(&p.w);
    for (int s = 0; s < T::kStages; ++s) {
      msa::sm90::mbarrier_init(&smem.full[s], T::kFirst ? 1 + T::kGroup : 1);
      msa::sm90::mbarrier_init(&smem.empty[s], 8);
    }
    msa::sm90::mbarrier_init_fence();
  }
  __syncthreads();
  msa::sm90::wait_for_previous_kernel();
  if (threadIdx.x / T::kGroup == 2) {
    msa::sm90::shrink_registers<T::kProducerRegisters>();
    tile_produce<T>(p, smem);
  } else {
    msa::sm90::grow_registers<T::kConsumerRegisters>();
    tile_consume_all<T>(p, smem);
  }
}

}  // namespace sparrow::ops::cuda
