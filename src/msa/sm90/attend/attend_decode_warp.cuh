// SPDX-License-Identifier: Apache-2.0
// How the decode attend kernel lays out its shared memory, and what one warp does with 16 keys.
#pragma once

#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/ptx.cuh"

namespace msa::sm90 {

template <KvType kType>
struct AttendDecodeTraits {
  static constexpr bool kFp8 = kType == KvType::kE4M3;
  static constexpr int kWarps = 8, kThreads = 32 * (kWarps + 1), kMinCtasPerSm = 1;
  static constexpr int kBlock = 128, kDim = 128, kRows = 16, kMaxTopK = 16;
  static constexpr int kStageKeys = 64, kChunkKeys = 16;  // keys of a stage, and of a warp's step
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kHalves = kFp8 ? 1 : 2;  // a row of K or V is one or two rows of 128 bytes
  static constexpr int kVectors =
      kChunkKeys * kDim * kElementBytes / 16 / 32;  // 16-byte pieces per lane of K or V
  static constexpr int kStages = kFp8 ? 8 : 4;      // even: the two halves of the warps take turns
  static constexpr int kStageBytes = 2 * kStageKeys * kDim * kElementBytes;
  static constexpr int kOutStride = kDim + 4;  // floats; keeps the rows of an accumulator off one bank
  static_assert(kStages % 2 == 0);
};

template <typename Traits>
struct AttendDecodeShared {
  // [stage][K, V][half][key][128 bytes], swizzled
  alignas(1024) unsigned char stage[Traits::kStages][2][Traits::kHalves][Traits::kStageKeys][128];
  float warp_out[Traits::kWarps][Traits::kRows][Traits::kOutStride];
  int32_t arrived;  // splits of the unit that were finished before this one
  float warp_max[Traits::kWarps][Traits::kRows], warp_sum[Traits::kWarps][Traits::kRows];
  int32_t visible[Traits::kStages];  // keys of the stage that the query may see; 0: the unit is over
  uint64_t full[Traits::kStages], empty[Traits::kStages];
};

namespace decode_detail {

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two e4m3 numbers in bytes 1 and 3 of `x` (bytes 0 and 2 are ignored) as bf16. Exponent and mantissa move
// into place and the product corrects the exponent bias (127 - 7); it is exact, subnormals included.
__device__ inline uint32_t widen_e4m3(uint32_t x) {
  const uint32_t bits = (x & 0x80008000u) | ((x & 0x7f007f00u) >> 4);
  const __nv_bfloat162 power = __halves2bfloat162(__ushort_as_bfloat16(0x7b80), __ushort_as_bfloat16(0x7b80));
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), power);
  return *reinterpret_cast<const uint32_t*>(&product);
}

template <int kVectors>
__device__ inline uint32_t word_of(const uint4 (&vectors)[kVectors], int word) {
  const uint4& v = vectors[word / 4];
  return word % 4 == 0 ? v.x : word % 4 == 1 ? v.y : word % 4 == 2 ? v.z : v.w;
}

// Piece `piece` (16 bytes) of row `key` of a swizzled tile.
__device__ inline uint4 read_piece(const unsigned char (*tile)[128], int key, int piece) {
  return *reinterpret_cast<const uint4*>(&tile[key][(piece ^ (key % 8)) * 16]);
}

__device__ inline void tma_load_tile(void* dst, const CUtensorMap* map, uint64_t* bar, int row) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3}], "
      "[%2];" ::"r"(smem_address(dst)),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(smem_address(bar)), "r"(0), "r"(row)
      : "memory");
}

}  // namespace decode_detail

// One warp's running softmax over its keys, for 16 rows of heads.
template <typename Traits>
struct AttendDecodeWarp {
  using Tile = const unsigned char (*)[Traits::kStageKeys][128];  // [half][key][128 bytes]

  uint32_t query[8][4];  // A operands of the eight k-steps of q.k
  float out[16][4];  // column n of tile j is channel n * 16 + j (fp8), or (j / 8) * 64 + n * 8 + j % 8 (bf16)
  float max[2], sum[2];  // rows lane / 4 and lane / 4 + 8, in units of log2

  // First channel of the four that lane t contributes to k-step `step`.
  __device__ static int channel_of(int step, int t) {
    return Traits::kFp8 ? t * 32 + step * 4 : step / 4 * 64 + t * 16 + step % 4 * 4;
  }

  __device__ void init(const __nv_bfloat16* q, int group, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      uint2 low = {}, high = {};
      if (g < group) low = *reinterpret_cast<const uint2*>(q + g * Traits::kDim + channel_of(step, t));
      if (g + 8 < group)
        high = *reinterpret_cast<const uint2*>(q + (g + 8) * Traits::kDim + channel_of(step, t));
      query[step][0] = low.x, query[step][1] = high.x, query[step][2] = low.y, query[step][3] = high.y;
    }
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] = 0;
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }

  // S = q.k of 16 keys from `first`, in two tiles of eight.
  __device__ void scores(Tile k, int first, int lane, float (&s)[2][4]) const {
    using namespace decode_detail;
    const int t = lane % 4;
    uint4 v[2][Traits::kVectors / 2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < Traits::kVectors / 2; ++i)
        v[tile][i] = read_piece(k[i / 2], first + tile * 8 + lane / 4, 2 * t + i % 2);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = 0;
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        uint32_t b0, b1;
        if constexpr (Traits::kFp8) {
          const uint32_t four = word_of(v[tile], step);
          b0 = widen_e4m3(__byte_perm(four, 0, 0x1404)), b1 = widen_e4m3(__byte_perm(four, 0, 0x3424));
        } else {
          b0 = word_of(v[tile], step * 2), b1 = word_of(v[tile], step * 2 + 1);
        }
        mma_16x8x16(s[tile], query[step], b0, b1);
      }
  }

  // The new maxima, and the probabilities in place of the scores.
  __device__ void softmax(float (&s)[2][4], float scale_log2) {
    using namespace decode_detail;
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaxf(max[r], top * scale_log2);
      const float base = top == -INFINITY ? 0 : top;
      correction[r] = exp2_fast(max[r] - base);
      max[r] = top;
      float total = 0;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[tile][i] = exp2_fast(fmaf(s[tile][i], scale_log2, -base));
          total += s[tile][i];
        }
      sum[r] = sum[r] * correction[r] + total;
    }
    if (!__any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f)) return;  // the maximum rarely moves
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] *= correction[i / 2];
  }

  // Keys from `visible` on count as zero: they may be unwritten and hold NaN, and 0 * NaN is NaN.
  __device__ void accumulate(Tile v, int first, int visible, int lane, const float (&p)[2][4]) {
    using namespace decode_detail;
    const uint32_t a[4] = {pack_bf16(p[0][0], p[0][1]), pack_bf16(p[0][2], p[0][3]),
                           pack_bf16(p[1][0], p[1][1]), pack_bf16(p[1][2], p[1][3])};
    constexpr int kTiles = 16 / Traits::kHalves;
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
      uint4 key[4][1];  // keys 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first + i / 2 * 8 + lane % 4 * 2 + i % 2;
        key[i][0] = read_piece(v[half], row, lane / 4);
        if (row >= visible) key[i][0] = make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        uint32_t b0, b1;
        if constexpr (Traits::kFp8) {
          const int word = j / 4, byte = j % 4;
          const uint32_t pick = (static_cast<uint32_t>(byte + 4) << 12) | (static_cast<uint32_t>(byte) << 4);
          b0 = widen_e4m3(__byte_perm(word_of(key[0], word), word_of(key[1], word), pick));
          b1 = widen_e4m3(__byte_perm(word_of(key[2], word), word_of(key[3], word), pick));
        } else {
          const uint32_t pick = j % 2 == 0 ? 0x5410 : 0x7632;
          b0 = __byte_perm(word_of(key[0], j / 2), word_of(key[1], j / 2), pick);
          b1 = __byte_perm(word_of(key[2], j / 2), word_of(key[3], j / 2), pick);
        }
        mma_16x8x16(out[half * kTiles + j], a, b0, b1);
      }
    }
  }

  __device__ void step(Tile k, Tile v, int first, int visible, float scale_log2, int lane) {
    float s[2][4];
    scores(k, first, lane, s);
    if (first + Traits::kChunkKeys > visible) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + tile * 8 + lane % 4 * 2 + i % 2 >= visible) s[tile][i] = -INFINITY;
    }
    softmax(s, scale_log2);
    accumulate(v, first, visible, lane, s);
  }
};

}  // namespace msa::sm90
