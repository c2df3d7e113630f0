// SPDX-License-Identifier: Apache-2.0
// How the stream kernel lays out its shared memory, and what one warp does with 16 keys: heads and queries in
// the M dimension of the tensor cores, keys in N. The contraction order of q.k and the column order of the
// output are permuted so that each lane's operands are whole 16-byte pieces of the swizzled tile, without
// bank conflicts.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"
#include "msa/sm90/widen.cuh"

namespace msa::sm90::dense {

template <Element kType>
struct StreamTraits {
  static constexpr bool kFp8 = kType == Element::kE4M3;
  static constexpr int kWarps = 8, kThreads = 32 * (kWarps + 1), kMinCtasPerSm = 1;
  static constexpr int kStepKeys = 16;  // of a warp
  static constexpr int kStageWarps = kStageKeys / kStepKeys;
  static constexpr int kTeams = kWarps / kStageWarps;  // take turns at the stages
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kHalves = kFp8 ? 1 : 2;  // a key is one or two rows of 128 bytes
  // Of 16 bytes, per lane of K or V.
  static constexpr int kPieces = kStepKeys * kDim * kElementBytes / 16 / 32;
  static constexpr int kStages = kFp8 ? 8 : 4;
  static constexpr int kStageBytes = 2 * kStageKeys * kDim * kElementBytes;
  static constexpr int kItemSlots = 4;
  static constexpr int kOutStride = kDim + 4;  // floats; keeps the rows of an accumulator off one bank
};

// A CTA's part of one (request, KV head).
struct StreamItem {
  int32_t first_query;  // row of q
  int32_t queries;      // 0: no more items
  int32_t head;
  int32_t first_key, keys;  // of the part
  int32_t position;         // of the first query
  int32_t partial;          // place in the workspace; -1: straight to the output
};

template <typename Traits>
struct StreamShared {
  // [stage][K, V][half][key][128 bytes], swizzled
  alignas(1024) unsigned char stage[Traits::kStages][2][Traits::kHalves][kStageKeys][128];
  float warp_out[Traits::kWarps][kStreamRows][Traits::kOutStride];
  float warp_max[Traits::kWarps][kStreamRows], warp_sum[Traits::kWarps][kStreamRows];
  StreamItem item[Traits::kItemSlots];
  uint64_t full[Traits::kStages], empty[Traits::kStages];
  uint64_t item_full[Traits::kItemSlots], item_empty[Traits::kItemSlots];
};

template <int kCount>
__device__ __forceinline__ uint32_t word_of(const uint4 (&pieces)[kCount], int word) {
  const uint4& v = pieces[word / 4];
  return word % 4 == 0 ? v.x : word % 4 == 1 ? v.y : word % 4 == 2 ? v.z : v.w;
}

// Piece `piece` (16 bytes) of row `key` of a swizzled tile.
__device__ __forceinline__ uint4 read_piece(const unsigned char (*tile)[128], int key, int piece) {
  return *reinterpret_cast<const uint4*>(&tile[key][(piece ^ (key % 8)) * 16]);
}

// One warp's running softmax over its keys.
template <typename Traits>
struct StreamWarp {
  using Tile = const unsigned char (*)[kStageKeys][128];  // [half][key][128 bytes]

  uint32_t query[8][4];  // A operands of the eight k-steps of q.k
  // Column n of tile j is channel n * 16 + j (e4m3), or (j / 8) * 64 + n * 8 + j % 8 (bf16).
  float out[16][4];
  // Of rows lane / 4 and lane / 4 + 8: maximum in units of log2, sum of this lane's keys, softmax scale.
  float max[2], sum[2], scale_log2[2];

  // First channel of the four that lane t contributes to k-step `step`.
  __device__ static int channel_of(int step, int t) {
    return Traits::kFp8 ? t * 32 + step * 4 : step / 4 * 64 + t * 16 + step % 4 * 4;
  }

  __device__ void init(const DenseParams& p, const StreamItem& item, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = lane / 4 + 8 * h;
      const __nv_bfloat16* q = p.q + query_offset(p, item, row);
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        uint2 four = {};
        if (row < item.queries * p.group)
          four = *reinterpret_cast<const uint2*>(q + channel_of(step, lane % 4));
        query[step][h] = four.x, query[step][2 + h] = four.y;
      }
    }
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] = 0;
    max[0] = max[1] = -INFINITY;
    sum[0] = sum[1] = 0;
    scale_log2[0] = scale_log2[1] = p.scale * kLog2e * key_scale(p, item.head);
    if constexpr (Traits::kFp8) convert_query();
  }

  __device__ void convert_query() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t largest = 0;
#pragma unroll
      for (int step = 0; step < 8; ++step)
        largest = largest_of(largest_of(largest, query[step][h]), query[step][2 + h]);
      largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = __vmaxu2(largest, __shfl_xor_sync(~0u, largest, 2));
      const RowScale scale = scale_row(largest);
      scale_log2[h] *= scale.inverse;
#pragma unroll
      for (int step = 0; step < 8; ++step)
#pragma unroll
        for (int i = h; i < 4; i += 2) query[step][i] = bf16_to_f16(query[step][i], scale.factor);
    }
  }

  __device__ static void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (Traits::kFp8)
      mma_16x8x16_f16(d, a, b0, b1);
    else
      mma_16x8x16(d, a, b0, b1);
  }

  // Of a row of the item in q and in the output.
  __device__ static int64_t query_offset(const DenseParams& p, const StreamItem& item, int row) {
    const int query = row / p.group;
    return ((int64_t{item.first_query + query} * p.kv_heads + item.head) * p.group + row - query * p.group) *
           kDim;
  }

  // S = q.k of 16 keys from `first`, in two tiles of eight.
  __device__ void scores(Tile k, int first, int lane, float (&s)[2][4]) const {
    uint4 v[2][Traits::kPieces / 2];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < Traits::kPieces / 2; ++i)
        v[tile][i] = read_piece(k[i / 2], first + tile * 8 + lane / 4, 2 * (lane % 4) + i % 2);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[tile][i] = 0;
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        uint32_t b0, b1;
        if constexpr (Traits::kFp8)
          widen_e4m3_f16(word_of(v[tile], step), b0, b1);
        else
          b0 = word_of(v[tile], step * 2), b1 = word_of(v[tile], step * 2 + 1);
        multiply(s[tile], query[step], b0, b1);
      }
  }

  // The new maxima, and the probabilities in place of the scores.
  __device__ void softmax(float (&s)[2][4]) {
    float correction[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaxf(max[r], top * scale_log2[r]);
      const float base = top == -INFINITY ? 0 : top;
      correction[r] = exp2_fast(max[r] - base);
      max[r] = top;
      float total = 0;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[tile][i] = exp2_fast(fmaf(s[tile][i], scale_log2[r], -base));
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

  // Keys from `written` on count as zero: they may hold NaN, and 0 * NaN is NaN.
  __device__ void accumulate(Tile v, int first, int written, int lane, const float (&p)[2][4]) {
    const auto pack = [](float low, float high) {
      return Traits::kFp8 ? pack_f16(low, high) : pack_bf16(low, high);
    };
    const uint32_t a[4] = {pack(p[0][0], p[0][1]), pack(p[0][2], p[0][3]), pack(p[1][0], p[1][1]),
                           pack(p[1][2], p[1][3])};
#pragma unroll
    for (int half = 0; half < Traits::kHalves; ++half) {
      uint4 key[4][1];  // keys 2t, 2t + 1, 2t + 8, 2t + 9
#pragma unroll
      for (int i = 0; i < 4; ++i)
        key[i][0] = read_piece(v[half], first + i / 2 * 8 + lane % 4 * 2 + i % 2, lane / 4);
      if (first + Traits::kStepKeys > written) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + i / 2 * 8 + lane % 4 * 2 + i % 2 >= written) key[i][0] = make_uint4(0, 0, 0, 0);
      }
      // The transposition that the product needs: numbers of two keys side by side.
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const uint32_t k0 = word_of(key[0], word), k1 = word_of(key[1], word), k2 = word_of(key[2], word),
                       k3 = word_of(key[3], word);
        if constexpr (Traits::kFp8) {
          uint32_t b0[4], b1[4];
          widen_e4m3_f16(__byte_perm(k0, k1, 0x5140), b0[0], b0[1]);
          widen_e4m3_f16(__byte_perm(k0, k1, 0x7362), b0[2], b0[3]);
          widen_e4m3_f16(__byte_perm(k2, k3, 0x5140), b1[0], b1[1]);
          widen_e4m3_f16(__byte_perm(k2, k3, 0x7362), b1[2], b1[3]);
#pragma unroll
          for (int i = 0; i < 4; ++i) multiply(out[4 * word + i], a, b0[i], b1[i]);
        } else {
          multiply(out[8 * half + 2 * word], a, __byte_perm(k0, k1, 0x5410), __byte_perm(k2, k3, 0x5410));
          multiply(out[8 * half + 2 * word + 1], a, __byte_perm(k0, k1, 0x7632), __byte_perm(k2, k3, 0x7632));
        }
      }
    }
  }

  // 16 keys from `first` of a stage. Row r sees the stage's keys up to limit[r]; `written` are there at all.
  __device__ void step(Tile k, Tile v, int first, int written, const int (&limit)[2], int lane) {
    float s[2][4];
    scores(k, first, lane, s);
    if (first + Traits::kStepKeys - 1 > min(limit[0], limit[1])) {
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first + tile * 8 + lane % 4 * 2 + i % 2 > limit[i / 2]) s[tile][i] = -INFINITY;
    }
    softmax(s);
    accumulate(v, first, written, lane, s);
  }
};

}  // namespace msa::sm90::dense
