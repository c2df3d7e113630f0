// SPDX-License-Identifier: Apache-2.0
// Weights as files have them, read in chunks of 32 as operands of a unit U (see gemm_simd.h), and how
// far ahead codes are asked for.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "ops/cpu/kernels.h"

namespace sparrow::ops::cpu {

// Decoding leaves the hardware too little room to look ahead in so many runs of memory, and a core waits for
// codes and decodes them in turns. Asked for this many bytes ahead, they are there.
// static: see lane_sums.h.
static constexpr int64_t kCodesAhead = 1024, kScalesAhead = 128;

// How far ahead of what a tile reads it asks for codes and scales; the same for all its runs. Where a run
// ends before that, what is asked for is the beginning of the run that comes next.
struct Ahead {
  int64_t codes = kCodesAhead, scales = kScalesAhead;

  // In row i of runs of `rows` rows, of the strip at `strip`.
  static Ahead at(const WeightView& w, const WeightPlace& strip, const WeightPlace& next, int64_t i,
                  int64_t rows) {
    Ahead ahead;
    const int64_t left = (rows - i) * w.stride, scales_left = (rows - i) * w.scale_stride;
    if (next.values != nullptr && left <= kCodesAhead)
      ahead.codes += next.values - strip.values - rows * w.stride;
    if (next.scales != nullptr && scales_left <= kScalesAhead)
      ahead.scales += next.scales - strip.scales - rows * w.scale_stride;
    return ahead;
  }
};

// Not inlined at once, g++ takes it for a function that does nothing, and drops calls.
static inline __attribute__((always_inline)) void ask_for(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// Weights from some row and column on, as stored.
template <typename U, MatrixFormat kFormat>
struct StoredWeights {
  using Operand = typename U::Operand;
  using Watch = typename U::E4m3::Watch;
  static constexpr int64_t kChunk = kColumnGroup;
  static constexpr int kVectors = U::kVectors;

  const char* values;
  const uint8_t* scales;
  int64_t stride, scale_stride;

  static StoredWeights at(const WeightView& w, int64_t row, int64_t k) {
    const uint8_t* scales = w.scales == nullptr ? nullptr : w.scales + row * w.scale_stride + k / kChunk;
    return {static_cast<const char*>(w.values) + row * w.stride + value_bytes(kFormat, k), scales, w.stride,
            w.scale_stride};
  }
  // The same rows from column k on, which begins a chunk.
  StoredWeights from(int64_t k) const {
    return {values + value_bytes(kFormat, k), scales == nullptr ? nullptr : scales + k / kChunk, stride,
            scale_stride};
  }
  const char* bytes(int64_t o, int64_t k) const { return values + o * stride + value_bytes(kFormat, k); }
  uint8_t scale(int64_t o, int64_t k) const { return scales[o * scale_stride + k / kChunk]; }
  // Calls use(v, x) for the vectors of a whole chunk of row o, k elements on. What is not exact sets off
  // the watch; kExact never does.
  template <bool kExact, typename Use>
  inline __attribute__((always_inline)) void load(int64_t o, int64_t k, Watch& watch, Use&& use) const {
    const auto* codes = reinterpret_cast<const uint8_t*>(bytes(o, k));
    if constexpr (!is_mx(kFormat)) {
      U::template chunk<kFormat>(bytes(o, k), use);
    } else if constexpr (kFormat == MatrixFormat::kMxfp4) {
      U::E2m1::chunk(codes, scale(o, k), use);
    } else if constexpr (kExact) {
      Operand exact[kVectors];
      U::E4m3::exact_chunk(codes, scale(o, k), exact);
      for (int v = 0; v < kVectors; ++v) use(v, exact[v]);
    } else {
      U::E4m3::chunk(codes, U::E4m3::factor(scale(o, k), watch), watch, use);
    }
  }
  // The last chunk of a row, of n elements.
  template <typename Use>
  void load_tail(int64_t o, int64_t k, int64_t n, Use&& use) const {
    if constexpr (!is_mx(kFormat)) {  // those have whole chunks only
      char padded[value_bytes(kFormat, kChunk)] = {};
      std::memcpy(padded, bytes(o, k), static_cast<size_t>(value_bytes(kFormat, n)));
      U::template chunk<kFormat>(padded, use);
    }
  }
  // Whether something was not exact in `columns` of some rows. A group of zeros may have any scale.
  __attribute__((noinline)) bool is_misread(const Watch& watch, int64_t outputs, int64_t columns) const {
    if (watch.beyond == 0 || U::E4m3::saw_nan(watch)) return U::E4m3::saw_nan(watch);
    for (int64_t o = 0; o < outputs; ++o)
      for (int64_t k = 0; k < columns; k += kChunk) {
        Watch one;
        U::E4m3::chunk(reinterpret_cast<const uint8_t*>(bytes(o, k)), U::E4m3::factor(scale(o, k), one), one,
                       [](int, Operand) {});
        if (one.beyond != 0 && !U::E4m3::saw_zeros(one)) return true;
      }
    return false;
  }
  void prefetch(int64_t o, int64_t k) const {
    const char* chunk = bytes(o, k);
    for (int64_t i = 0; i < value_bytes(kFormat, kChunk); i += 64) _mm_prefetch(chunk + i, _MM_HINT_T0);
  }
};

}  // namespace sparrow::ops::cpu
