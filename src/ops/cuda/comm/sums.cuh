// SPDX-License-Identifier: Apache-2.0
// Partial rows of several ranks, eight columns to a thread, and their sum.
#pragma once

#include "ops/cuda/comm/exchange.h"
#include "ops/cuda/comm/wait.cuh"
#include "ops/cuda/rows_device.cuh"

namespace sparrow::ops::cuda {

// kVector numbers of a partial row as they travel.
template <typename T>
struct PartialVector {
  static constexpr int kQuads = kVector * sizeof(T) / sizeof(uint4);
  uint4 quad[kQuads];

  __device__ __forceinline__ void load(const T* from) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) quad[q] = load_shared_by_all(reinterpret_cast<const uint4*>(from) + q);
  }
  __device__ __forceinline__ void store(T* to) const {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) store_shared_by_all(reinterpret_cast<uint4*>(to) + q, quad[q]);
  }
  __device__ __forceinline__ bool has_empty_word() const {
    bool empty = false;
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      empty |= quad[q].x == kEmptyWord || quad[q].y == kEmptyWord || quad[q].z == kEmptyWord ||
               quad[q].w == kEmptyWord;
    return empty;
  }
  // What is sent is never taken for empty: one NaN is as good as another.
  __device__ __forceinline__ void avoid_empty_words() {
    constexpr uint32_t kNan = 0x7fff7fff;
    const auto avoid = [](uint32_t& word) { word = word == kEmptyWord ? kNan : word; };
#pragma unroll
    for (int q = 0; q < kQuads; ++q) avoid(quad[q].x), avoid(quad[q].y), avoid(quad[q].z), avoid(quad[q].w);
  }
  __device__ __forceinline__ static PartialVector filled(uint32_t word) {
    PartialVector v;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) v.quad[q] = {word, word, word, word};
    return v;
  }
};

struct Floats {
  float x[kVector];
};

__device__ __forceinline__ Floats floats_of(const PartialVector<__nv_bfloat16>& v) {
  Floats f;
  const uint32_t words[] = {v.quad[0].x, v.quad[0].y, v.quad[0].z, v.quad[0].w};
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    f.x[2 * e] = __uint_as_float(words[e] << 16);
    f.x[2 * e + 1] = __uint_as_float(words[e] & 0xffff0000);
  }
  return f;
}
__device__ __forceinline__ Floats floats_of(const PartialVector<float>& v) {
  Floats f;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    f.x[4 * q] = __uint_as_float(v.quad[q].x);
    f.x[4 * q + 1] = __uint_as_float(v.quad[q].y);
    f.x[4 * q + 2] = __uint_as_float(v.quad[q].z);
    f.x[4 * q + 3] = __uint_as_float(v.quad[q].w);
  }
  return f;
}

// The sum of parts [kFirst, kFirst + kCount) as a binary tree; `part(s)` gives one.
template <int kFirst, int kCount, typename Part>
__device__ __forceinline__ Floats tree_sum(const Part& part) {
  if constexpr (kCount == 1) {
    return part(kFirst);
  } else {
    Floats sum = tree_sum<kFirst, kCount / 2>(part);
    const Floats other = tree_sum<kFirst + kCount / 2, kCount / 2>(part);
#pragma unroll
    for (int e = 0; e < kVector; ++e) sum.x[e] += other.x[e];
    return sum;
  }
}

__device__ __forceinline__ PartialVector<__nv_bfloat16> to_partial(const Vector& v) {
  return {{*reinterpret_cast<const uint4*>(&v)}};
}
__device__ __forceinline__ Vector from_partial(const PartialVector<__nv_bfloat16>& v) {
  Vector x;
  *reinterpret_cast<uint4*>(&x) = v.quad[0];
  return x;
}

// bf16(residual + sum).
__device__ __forceinline__ Vector add_residual(const Floats& sum, const Vector& residual) {
  Vector x;
#pragma unroll
  for (int e = 0; e < kVector / 2; ++e) {
    const float2 r = __bfloat1622float2(residual.pair[e]);
    x.pair[e] = __floats2bfloat162_rn(r.x + sum.x[2 * e], r.y + sum.x[2 * e + 1]);
  }
  return x;
}

__device__ __forceinline__ int group_of(const RowGroups& groups, int i) {
  int g = 0;
  while (g + 1 < groups.count && i >= groups.first_row[g + 1]) ++g;
  return g;
}
__device__ __forceinline__ int size_of(const RankRange& ranks) {
  return ranks.end - ranks.begin;
}
__device__ __forceinline__ bool contains(const RankRange& ranks, int rank) {
  return rank >= ranks.begin && rank < ranks.end;
}

// The row of its group that is exchanged at place i, and where its vectors lie.
__device__ __forceinline__ int row_of(const ExchangeArgs& p, int g, int i) {
  return p.row_list == nullptr ? i - p.groups.first_row[g] : p.row_list[i];
}
__device__ __forceinline__ int64_t partial_at(const ExchangeArgs& p, int g, int row, int vector) {
  return int64_t{p.groups.first_partial_row[g] + row} * p.hidden + vector * kVector;
}
__device__ __forceinline__ int64_t out_at(const ExchangeArgs& p, int g, int i, int vector) {
  return int64_t{p.groups.first_out_row[g] + i - p.groups.first_row[g]} * p.hidden + vector * kVector;
}

}  // namespace sparrow::ops::cuda
