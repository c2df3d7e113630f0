// SPDX-License-Identifier: Apache-2.0
// Register tiles of the matrix product over a unit U (see gemm_simd.h): a few outputs times a few rows over
// one block of k, of weights that were expanded before; stream_tile.h has those of weights as stored. Loops
// over a tile are unrolled, so that its sums stay in registers.
#pragma once

#include <immintrin.h>

#include "ops/cpu/gemm/lane_sums.h"
#include "ops/cpu/gemm/stored_weights.h"

namespace sparrow::ops::cpu {

template <typename U>
struct TileSimd {
  using Element = typename U::Element;
  using Operand = typename U::Operand;
  using Sum = typename U::Sum;
  using Watch = typename U::E4m3::Watch;
  static constexpr int64_t kChunk = kColumnGroup;  // elements of k that are loaded together: one scale
  static constexpr int kVectors = U::kVectors;     // of a chunk
  static constexpr int64_t kLanes = kChunk / kVectors;
  static constexpr int kOutputs = U::kOutputs;

  template <MatrixFormat kFormat>
  using Stored = StoredWeights<U, kFormat>;

  template <int kO, int kR>
  static void finish(const Sum (&sums)[kR][kO], float* c, int64_t c_stride, bool first) {
    constexpr int kGroups = kR * kO / kOutputs;  // of kOutputs sums of a row
    const auto from = [&](int g) { return &sums[g * kOutputs / kO][g * kOutputs % kO]; };
    const auto to = [&](int g) { return c + g * kOutputs / kO * c_stride + g * kOutputs % kO; };
    constexpr bool kPairs = requires {
      U::finish(from(0), from(0), c, c, first);
    };
#pragma GCC unroll 8
    for (int g = 0; kPairs && g + 1 < kGroups; g += 2)
      if constexpr (kPairs) U::finish(from(g), from(g + 1), to(g), to(g + 1), first);
#pragma GCC unroll 8
    for (int g = kPairs ? kGroups / 2 * 2 : 0; g < kGroups; ++g) U::finish(from(g), to(g), first);
  }

  // `columns` elements of a panel's weight rows; the last of `outputs` rows stands in for missing ones. Runs
  // of one block are too short for the hardware to see a pattern: the rows `ahead` are asked for meanwhile.
  template <MatrixFormat kFormat, bool kExact = false>
  static void expand(const Stored<kFormat>& w, int64_t outputs, int64_t columns, int64_t ahead,
                     Element* panel) {
    Watch watch;
    for (int64_t i = 0; i < kOutputs; ++i) {
      const int64_t o = i < outputs ? i : outputs - 1;
      Element* to = panel + i * kLanes;
      const auto store = [&](int v, Operand x) { U::store(to + v * kOutputs * kLanes, x); };
      int64_t k = 0;
      for (; k + kChunk <= columns; k += kChunk, to += kOutputs * kChunk) {
        w.prefetch(o + ahead, k);
        w.template load<kExact>(o, k, watch, store);
      }
      if (k < columns) w.load_tail(o, k, columns - k, store);
    }
    if constexpr (kFormat == MatrixFormat::kMxfp8 && !kExact)
      if (w.is_misread(watch, outputs, columns)) expand<kFormat, true>(w, outputs, columns, ahead, panel);
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
};

}  // namespace sparrow::ops::cpu
