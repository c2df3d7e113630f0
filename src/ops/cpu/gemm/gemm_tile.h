// SPDX-License-Identifier: Apache-2.0
// Register tiles of the matrix product over a unit U (see gemm_simd.h): a few outputs times a few rows over
// one block of k. Loops over a tile are unrolled, so that its sums stay in registers.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/gemm/lane_sums.h"
#include "ops/cpu/kernels.h"

namespace sparrow::ops::cpu {

template <typename U>
struct TileSimd {
  using Element = typename U::Element;
  using Operand = typename U::Operand;
  using Sum = typename U::Sum;
  static constexpr int64_t kChunk = kColumnGroup;  // elements of k that are loaded together: one scale
  static constexpr int kVectors = U::kVectors;     // of a chunk
  static constexpr int64_t kLanes = kChunk / kVectors;
  static constexpr int kOutputs = U::kOutputs;

  // Weights from some row and column on, as stored.
  template <MatrixFormat kFormat>
  struct Stored {
    const char* values;
    const uint8_t* scales;
    int64_t stride, scale_stride;

    static Stored at(const WeightView& w, int64_t row, int64_t k) {
      const uint8_t* scales = w.scales == nullptr ? nullptr : w.scales + row * w.scale_stride + k / kChunk;
      return {static_cast<const char*>(w.values) + row * w.stride + value_bytes(kFormat, k), scales, w.stride,
              w.scale_stride};
    }
    const char* bytes(int64_t o, int64_t k) const { return values + o * stride + value_bytes(kFormat, k); }
    // A whole chunk of row o, k elements on.
    void load(int64_t o, int64_t k, Operand* to) const {
      if constexpr (is_mx(kFormat))
        U::template chunk<kFormat>(bytes(o, k), scales[o * scale_stride + k / kChunk], to);
      else
        U::template chunk<kFormat>(bytes(o, k), to);
    }
    // The last chunk of a row, of n elements.
    void load_tail(int64_t o, int64_t k, int64_t n, Operand* to) const {
      if constexpr (!is_mx(kFormat)) {  // those have whole chunks only
        char padded[value_bytes(kFormat, kChunk)] = {};
        std::memcpy(padded, bytes(o, k), static_cast<size_t>(value_bytes(kFormat, n)));
        U::template chunk<kFormat>(padded, to);
      }
    }
    void prefetch(int64_t o, int64_t k) const {
      const char* chunk = bytes(o, k);
      for (int64_t i = 0; i < value_bytes(kFormat, kChunk); i += 64) _mm_prefetch(chunk + i, _MM_HINT_T0);
    }
  };

  template <int kO, int kR>
  static void finish(const Sum (&sums)[kR][kO], float* c, int64_t c_stride, bool first) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
      for (int o = 0; o < kO; o += kOutputs) U::finish(&sums[r][o], c + r * c_stride + o, first);
  }

  // c[r][o] over one block of k, added to what is there unless it is the first: a panel of weights
  // [vector][output][lane] times the rows at x.
  template <int kR>
  static __attribute__((noinline)) void panel_tile(const Element* w, const Element* const* x, int64_t chunks,
                                                   float* c, int64_t c_stride, bool first) {
    Sum sums[kR][kOutputs];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sums[r][o] = U::zero();
    for (int64_t k = 0; k < chunks * kChunk; k += kLanes, w += kOutputs * kLanes) {
      Operand xs[kR];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) xs[r] = U::load(x[r] + k);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) {
        const Operand ws = U::load(w + o * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r) sums[r][o] = U::dot(ws, xs[r], sums[r][o]);
      }
    }
    finish<kOutputs, kR>(sums, c, c_stride, first);
  }

  // The same, of weights as stored: `columns` of each row.
  template <MatrixFormat kFormat, int kO, int kR>
  static void stream_tile(const Stored<kFormat>& w, const Element* const* x, int64_t columns, float* c,
                          int64_t c_stride, bool first) {
    Sum sums[kR][kO];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
      for (int o = 0; o < kO; ++o) sums[r][o] = U::zero();
    const auto step = [&](int64_t k, auto&& load) __attribute__((always_inline)) {
      Operand xs[kR][kVectors];
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) xs[r][v] = U::load(x[r] + k + v * kLanes);
#pragma GCC unroll 8
      for (int o = 0; o < kO; ++o) {
        Operand ws[kVectors];
        load(o, ws);
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v)
#pragma GCC unroll 8
          for (int r = 0; r < kR; ++r) sums[r][o] = U::dot(ws[v], xs[r][v], sums[r][o]);
      }
    };
    int64_t k = 0;
    for (; k + kChunk <= columns; k += kChunk)
      step(
          k, [&](int o, Operand* to) __attribute__((always_inline)) { w.load(o, k, to); });
    if (k < columns)
      step(
          k, [&](int o, Operand* to) __attribute__((always_inline)) { w.load_tail(o, k, columns - k, to); });
    finish<kO, kR>(sums, c, c_stride, first);
  }
};

}  // namespace sparrow::ops::cpu
