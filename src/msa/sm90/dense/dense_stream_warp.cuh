// SPDX-License-Identifier: Apache-2.0
// How the stream kernel lays out its shared memory, and what one warp does with 16 keys: heads and queries in
// the M dimension of the tensor cores, keys in N. The contraction order of q.k and the column order of the
// output are permuted so that each lane's operands are whole 16-byte pieces of the swizzled tile, without
// bank conflicts.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"
#include "sm90/convert.cuh"
#include "sm90/mma.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90::dense {

template <hopper::Element kType>
struct StreamTraits {
  static constexpr bool kFp8 = kType == hopper::Element::kE4M3;
  static constexpr int kWarps = 8, kThreads = 32 * kWarps;
  // Leave room in each of the SM's four register files for two warps of 64: the merging kernel's CTAs then
  // start beside this one's, and let those of the next kernel start as these end.
  static constexpr int kRegisters = 176;
  static_assert(kWarps / 4 * 32 * kRegisters + 2 * 32 * 64 <= 65536 / 4);
  static constexpr int kStepKeys = 16;              // of a warp's products
  static constexpr int kTileKeys = kFp8 ? 32 : 16;  // that it takes at a time
  static constexpr int kKeyDistance = kWarps * kTileKeys;
  static constexpr int kElementBytes = kFp8 ? 1 : 2;
  static constexpr int kHalves = kFp8 ? 1 : 2;  // a key is one or two rows of 128 bytes
  // Of 16 bytes, per lane of K or V.
  static constexpr int kPieces = kStepKeys * kDim * kElementBytes / 16 / 32;
  // A warp's ring: places for K and V of one tile or for the warp's sums, 192 KiB in all.
  static constexpr int kPlaceBytes = 2 * kTileKeys * kDim * kElementBytes, kPlaces = 3;
  static_assert(kPlaceBytes == kStreamRows * kDim * 4);
};

// A CTA's part of one (request, KV head).
struct StreamItem {
  int32_t request, head;
  int32_t first_query, queries;  // rows of q
  int32_t first_key, keys;       // of the part
  int32_t position;              // of the first query
  int32_t partial;               // place in the workspace; -1: straight to the output
};

template <typename Traits>
struct StreamShared {
  // [K, V][half][key][128 bytes], swizzled; or rows of sums
  alignas(1024) unsigned char ring[Traits::kWarps][Traits::kPlaces][Traits::kPlaceBytes];
  float warp_max[Traits::kWarps][kStreamRows], warp_sum[Traits::kWarps][kStreamRows];
  int32_t out_place[Traits::kWarps];  // of a warp's ring: its sums
  uint64_t full[Traits::kWarps][Traits::kPlaces];
};

// Four channels from `channel` of a row of the sums that a warp put into a place of its ring. Pieces are
// permuted so that neither the accumulators' stores nor the reads of a row meet on a bank.
template <typename Traits>
__device__ __forceinline__ float4* sums_of(StreamShared<Traits>& shared, int warp, int place, int row,
                                           int channel) {
  const int piece = channel / 4, at = piece ^ (piece / 8 % 4) ^ (row % 2 << (Traits::kFp8 ? 2 : 1));
  return reinterpret_cast<float4*>(shared.ring[warp][place]) + row * (kDim / 4) + at;
}

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
  using Tile = const unsigned char (*)[Traits::kTileKeys][128];  // [half][key][128 bytes]

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
      for (int step = 0; step < 8; step += 2) {  // whose channels are neighbours
        uint4 eight = {};
        if (row < item.queries * p.group)
          eight = *reinterpret_cast<const uint4*>(q + channel_of(step, lane % 4));
        query[step][h] = eight.x, query[step][2 + h] = eight.y;
        query[step + 1][h] = eight.z, query[step + 1][2 + h] = eight.w;
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
      hopper::mma_16x8x16_f16(d, a, b0, b1);
    else
      hopper::mma_16x8x16(d, a, b0, b1);
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
          hopper::widen_e4m3_f16(word_of(v[tile], step), b0, b1);
        else
          b0 = word_of(v[tile], step * 2), b1 = word_of(v[tile], step * 2 + 1);
        multiply(s[tile], query[step], b0, b1);
      }
  }

  // Keys from `written` on count as zero: they may hold NaN, and 0 * NaN is NaN.
  __device__ void accumulate(Tile v, int first, int written, int lane, const float (&p)[2][4]) {
    const uint32_t a[4] = {
        pack_pair<Traits::kFp8>(p[0][0], p[0][1]), pack_pair<Traits::kFp8>(p[0][2], p[0][3]),
        pack_pair<Traits::kFp8>(p[1][0], p[1][1]), pack_pair<Traits::kFp8>(p[1][2], p[1][3])};
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
          hopper::widen_e4m3_f16(__byte_perm(k0, k1, 0x5140), b0[0], b0[1]);
          hopper::widen_e4m3_f16(__byte_perm(k0, k1, 0x7362), b0[2], b0[3]);
          hopper::widen_e4m3_f16(__byte_perm(k2, k3, 0x5140), b1[0], b1[1]);
          hopper::widen_e4m3_f16(__byte_perm(k2, k3, 0x7362), b1[2], b1[3]);
#pragma unroll
          for (int i = 0; i < 4; ++i) multiply(out[4 * word + i], a, b0[i], b1[i]);
        } else {
          multiply(out[8 * half + 2 * word], a, __byte_perm(k0, k1, 0x5410), __byte_perm(k2, k3, 0x5410));
          multiply(out[8 * half + 2 * word + 1], a, __byte_perm(k0, k1, 0x7632), __byte_perm(k2, k3, 0x7632));
        }
      }
    }
  }

  // 16 keys from `first` of a tile. Row r sees the tile's keys up to limit[r]; `written` are there at all.
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
    softmax_step(s, scale_log2, max, sum, out);
    accumulate(v, first, written, lane, s);
  }
};

}  // namespace msa::sm90::dense
