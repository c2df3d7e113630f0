// SPDX-License-Identifier: Apache-2.0
// How the decode attend kernel lays out its shared memory, and what one warp does with 16 keys.
#pragma once

#include <type_traits>

#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/index/index_select.cuh"
#include "msa/sm90/softmax.cuh"
#include "sm90/convert.cuh"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

template <KvType kType, int kScoresPerBlock>
struct AttendDecodeTraits {
  static constexpr bool kFp8 = kType == KvType::kE4M3;
  static constexpr int kScores = kScoresPerBlock;  // of the index scan; 0: the selection is given
  static constexpr bool kSelects = kScores > 0;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kMinCtasPerSm = 2;
  static constexpr int kBlock = 128, kDim = 128, kRows = 16;
  static constexpr int kWarpKeys = kBlock / kWarps;  // a warp takes these of every block
  static constexpr int kHalves = kFp8 ? 1 : 2;       // a key or value is one or two lines of 128 bytes
  static constexpr int kTileBytes = kHalves * kWarpKeys * 128;  // K or V of a warp's keys
  static constexpr int kPlaceBytes = 4096;  // of the ring: what one copy brings, e4m3 K and V together
  static constexpr bool kTogether = kPlaceBytes == 2 * kTileBytes;
  static constexpr int kRing = 3;  // two CTAs share an SM: 192 KiB in flight
  // Floats from one row of a warp's result to the next: the accumulators' stores meet no bank twice.
  static constexpr int kOutStride = kDim + (kFp8 ? 16 : 8);
  static constexpr int kQueryStride = kDim + 8;  // bf16; the same for matrix loads
  static constexpr int kTableCache = 2048;       // blocks of a request whose pages are read ahead
  static constexpr int kSelectPerThread = 4, kSelectBlocks = kThreads * kSelectPerThread;
  static_assert(kWarpKeys == 16 && kRows * kOutStride * 4 <= kRing * kPlaceBytes);
};

template <typename Traits>
struct AttendDecodeShared {
  union WarpArea {
    unsigned char ring[Traits::kRing][Traits::kPlaceBytes];  // [half][key][128 bytes], swizzled
    float out[Traits::kRows][Traits::kOutStride];            // after the warp's last tile
  };
  // The other CTAs' sums for the rows that this one merges: entry split * (16 / splits) + row / splits.
  struct Inbox {
    float out[Traits::kRows][Traits::kDim];
    float2 max_sum[Traits::kRows];
  };
  alignas(1024) WarpArea area[Traits::kWarps];
  alignas(16) __nv_bfloat16 query[Traits::kRows][Traits::kQueryStride];
  union {
    int32_t table[Traits::kTableCache];  // until the cluster's first barrier
    Inbox inbox;
  };
  float warp_max[Traits::kWarps][Traits::kRows], warp_sum[Traits::kWarps][Traits::kRows];
  uint64_t full[Traits::kWarps][Traits::kRing], inbox_full;
  std::conditional_t<Traits::kSelects, SelectScratch<Traits::kWarps>, char> select;
};

// 16 bytes of a line of a swizzled tile.
__device__ __forceinline__ uint32_t piece_address(uint32_t tile, int line, int piece) {
  return tile + line * 128 + ((piece ^ (line % 8)) << 4);
}

// One warp's running softmax over its keys, for 16 rows of heads. K and V are B operands: matrix loads give
// them as they are for K, transposed for V. A 16-bit element of such a load is two e4m3 numbers: neighbouring
// channels of one key. They are multiplied as f16, which holds them exactly.
template <typename Traits>
struct AttendDecodeWarp {
  // Column n of tile j is channel 8 j + n (bf16) or 16 (j / 2) + 2 n + j % 2 (e4m3).
  float out[16][4] = {};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};  // rows lane / 4 and lane / 4 + 8; max in units of log2

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Traits::kFp8) {
      hopper::mma_16x8x16_f16(d, a, b0, b1);
    } else {
      hopper::mma_16x8x16(d, a, b0, b1);
    }
  }

  // A row of q as the products want it: for e4m3 in f16 (saturated), and of every four channels the first
  // two in the step's first half.
  __device__ static void store_query(__nv_bfloat16* row, int piece, const uint4& eight) {
    if constexpr (!Traits::kFp8) {
      *reinterpret_cast<uint4*>(row + piece * 8) = eight;
    } else {
      __nv_bfloat16* step = row + piece / 2 * 16 + piece % 2 * 4;
      *reinterpret_cast<uint2*>(step) = {hopper::f16_of_bf16(eight.x), hopper::f16_of_bf16(eight.z)};
      *reinterpret_cast<uint2*>(step + 8) = {hopper::f16_of_bf16(eight.y), hopper::f16_of_bf16(eight.w)};
    }
  }

  // S = q.k of 16 keys, in two tiles of eight.
  __device__ static void scores(uint32_t query, uint32_t k, int lane, float (&s)[2][4]) {
    float sums[2][2][4] = {};  // two chains for each tile: a product's latency is long
    const uint32_t a_address = query + (lane % 16 * Traits::kQueryStride + lane / 16 * 8) * 2;
    const int row = lane % 8 + lane / (Traits::kFp8 ? 8 : 16) % 2 * 8;
#pragma unroll
    for (int step = 0; step < 8; step += Traits::kFp8 ? 2 : 1) {
      uint32_t b[4];
      if constexpr (Traits::kFp8) {  // matrices: both key tiles of this step, then of the next
        hopper::ldmatrix_x4(b, piece_address(k, row, step + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          uint32_t a[4];
          hopper::ldmatrix_x4(a, a_address + (step + i) * 32);
#pragma unroll
          for (int tile = 0; tile < 2; ++tile) {
            uint32_t low, high;
            hopper::widen_e4m3_f16(b[i * 2 + tile], low, high);
            multiply(sums[i][tile], a, low, high);
          }
        }
      } else {  // matrices: both halves of the step's channels for the first key tile, then for the second
        hopper::ldmatrix_x4(
            b, piece_address(k + step / 4 * Traits::kWarpKeys * 128, row, step % 4 * 2 + lane / 8 % 2));
        uint32_t a[4];
        hopper::ldmatrix_x4(a, a_address + step * 32);
        multiply(sums[step % 2][0], a, b[0], b[1]);
        multiply(sums[step % 2][1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = sums[0][tile][i] + sums[1][tile][i];
  }

  // The new maxima, and the probabilities in place of the scores.
  __device__ void softmax(float (&s)[2][4], float scale_log2) {
    softmax_step(s, {scale_log2, scale_log2}, max, sum, out);
  }

  __device__ void accumulate(uint32_t v, int lane, const float (&p)[2][4]) {
    const uint32_t a[4] = {
        pack_pair<Traits::kFp8>(p[0][0], p[0][1]), pack_pair<Traits::kFp8>(p[0][2], p[0][3]),
        pack_pair<Traits::kFp8>(p[1][0], p[1][1]), pack_pair<Traits::kFp8>(p[1][2], p[1][3])};
#pragma unroll
    for (int piece = 0; piece < 8 * Traits::kHalves; piece += 2) {
      uint32_t b[4];  // the first and last eight keys of one piece, then of the next
      hopper::ldmatrix_x4_transposed(
          b, piece_address(v + piece / 8 * Traits::kWarpKeys * 128, lane % 16, piece % 8 + lane / 16));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (Traits::kFp8) {
          uint32_t even[2], odd[2];
#pragma unroll
          for (int h = 0; h < 2; ++h)  // from (key, channel) 00 01 10 11 to 00 10 and 01 11
            hopper::widen_e4m3_f16(__byte_perm(b[2 * i + h], 0, 0x3120), even[h], odd[h]);
          multiply(out[2 * (piece + i)], a, even[0], even[1]);
          multiply(out[2 * (piece + i) + 1], a, odd[0], odd[1]);
        } else {
          multiply(out[piece + i], a, b[2 * i], b[2 * i + 1]);
        }
      }
    }
  }

  // Hides the keys from `visible` on. They may be unwritten and hold NaN, and 0 * NaN is NaN: their values
  // become zero.
  __device__ static void hide_keys(float (&s)[2][4], int visible, int lane) {
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (tile * 8 + lane % 4 * 2 + i % 2 >= visible) s[tile][i] = -INFINITY;
  }
  __device__ static void zero_values(uint32_t v, int visible, int lane) {
    for (int line = visible * 8 + lane; line < Traits::kWarpKeys * 8; line += 32)
#pragma unroll
      for (int half = 0; half < Traits::kHalves; ++half)
        hopper::store_shared(v + half * Traits::kWarpKeys * 128 + line * 16, uint4{});
    hopper::fence_async_shared();  // the copy engine may write here next
    __syncwarp();
  }

  // The result, relative to the warp's own maximum, where merge_warps() finds it.
  __device__ void store(float (*area)[Traits::kOutStride], float* warp_max, float* warp_sum, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const int row = g + 8 * r;
      if (t == 0) warp_max[row] = max[r], warp_sum[row] = total;
#pragma unroll
      for (int j = 0; j < 16; j += Traits::kFp8 ? 2 : 1) {
        if constexpr (Traits::kFp8) {
          *reinterpret_cast<float4*>(&area[row][j * 8 + 4 * t]) =
              make_float4(out[j][2 * r], out[j + 1][2 * r], out[j][2 * r + 1], out[j + 1][2 * r + 1]);
        } else {
          *reinterpret_cast<float2*>(&area[row][j * 8 + 2 * t]) =
              make_float2(out[j][2 * r], out[j][2 * r + 1]);
        }
      }
    }
  }
};

}  // namespace msa::sm90
