// SPDX-License-Identifier: Apache-2.0
// Register tiles of the matrix product over a unit U (see gemm_simd.h) whose weights go from memory straight
// into registers: for few rows, where reading the weights is most of the work.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "ops/cpu/gemm/gemm_tile.h"
#include "ops/cpu/gemm/packed_simd.h"
#include "ops/cpu/gemm/stored_weights.h"

namespace sparrow::ops::cpu {

// A block of k of kO rows, as it streams by: e4m3 codes, and the factors of all their scales, made at once.
template <typename U, int kO>
struct E4m3Block {
  using E4m3 = typename U::E4m3;
  using Watch = typename E4m3::Watch;

  const uint8_t* codes[kO];
  typename E4m3::Factor factors[kO][PackedSimd<U>::kBlock / kColumnGroup];
  Watch watch;  // of the scales

  void read(const StoredWeights<U, MatrixFormat::kMxfp8>& w, int64_t columns, int64_t ahead) {
    watch = {};
#pragma GCC unroll 8
    for (int o = 0; o < kO; ++o) {
      const uint8_t* scales = w.scales + o * w.scale_stride;
      ask_for(scales + ahead);
      E4m3::factors(scales, columns / kColumnGroup, watch, factors[o]);
      codes[o] = reinterpret_cast<const uint8_t*>(w.bytes(o, 0));
    }
  }

  // Calls use(v, x) for the vectors of the E4m3::kStep codes of row o from the k-th on.
  template <typename Use>
  inline __attribute__((always_inline)) void load(int o, int64_t k, int64_t ahead, Watch& watch,
                                                  Use&& use) const {
    ask_for(codes[o] + k + ahead);
    E4m3::step(codes[o] + k, factors[o] + k / kColumnGroup, watch, use);
  }
};

// Other formats need nothing of the kind.
struct NoBlock {
  template <typename Stored>
  void read(const Stored&, int64_t, int64_t) {}
};

template <typename U>
struct StreamTile {
  using Element = typename U::Element;
  using Operand = typename U::Operand;
  using Sum = typename U::Sum;
  using Watch = typename U::E4m3::Watch;
  static constexpr int64_t kChunk = TileSimd<U>::kChunk, kLanes = TileSimd<U>::kLanes;
  static constexpr int kVectors = U::kVectors;

  template <MatrixFormat kFormat>
  using Stored = StoredWeights<U, kFormat>;
  template <MatrixFormat kFormat, int kO>
  using Block = std::conditional_t<kFormat == MatrixFormat::kMxfp8, E4m3Block<U, kO>, NoBlock>;

  // c[r][o] over `columns` of each row, which are those of the block from its column `at` on; added to what
  // is there unless they are the first.
  template <MatrixFormat kFormat, int kO, int kR, bool kExact = false>
  static void tile(const Stored<kFormat>& w, [[maybe_unused]] const Block<kFormat, kO>& block,
                   [[maybe_unused]] int64_t at, [[maybe_unused]] int64_t ahead, const Element* const* x,
                   int64_t columns, float* c, int64_t c_stride, bool first) {
    Sum sums[kR][kO];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r)
#pragma GCC unroll 8
      for (int o = 0; o < kO; ++o) sums[r][o] = U::zero();
    Watch watch;
    int64_t k = 0;
    // Rows in registers for all outputs; or where they lie, since decoding takes the registers.
    constexpr bool kRowsInPlace = is_mx(kFormat);
    Operand xs[kR][kVectors];
    const auto load_rows = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < kR && !kRowsInPlace; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) xs[r][v] = U::load(x[r] + k + v * kLanes);
    };
    const auto add_to = [&](int o) __attribute__((always_inline)) {
      return [&, o ](int v, Operand w) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int r = 0; r < kR; ++r)
          sums[r][o] = kRowsInPlace ? U::dot_at(w, x[r] + k + v * kLanes, sums[r][o])
                                    : U::dot(w, xs[r][v], sums[r][o]);
      };
    };
    if constexpr (kFormat == MatrixFormat::kMxfp8 && !kExact) {
      watch.beyond = block.watch.beyond;
      for (; k + U::E4m3::kStep <= columns; k += U::E4m3::kStep)
#pragma GCC unroll 8
        for (int o = 0; o < kO; ++o) block.load(o, at + k, ahead, watch, add_to(o));
    }
    for (; k + kChunk <= columns; k += kChunk) {
      load_rows();
#pragma GCC unroll 8
      for (int o = 0; o < kO; ++o) {
        if constexpr (kR == 1 && !kRowsInPlace) {  // loads ahead of the one chain of additions
          Operand ws[kVectors];
          w.template load<kExact>(o, k, watch, [&](int v, Operand loaded) { ws[v] = loaded; });
#pragma GCC unroll 8
          for (int v = 0; v < kVectors; ++v) add_to(o)(v, ws[v]);
        } else {
          if constexpr (kRowsInPlace) ask_for(w.bytes(o, k) + ahead);
          w.template load<kExact>(o, k, watch, add_to(o));
        }
      }
    }
    if (k < columns) {
      load_rows();
#pragma GCC unroll 8
      for (int o = 0; o < kO; ++o) w.load_tail(o, k, columns - k, add_to(o));
    }
    if constexpr (kFormat == MatrixFormat::kMxfp8 && !kExact)
      if ((watch.beyond != 0 || U::E4m3::saw_nan(watch)) && w.is_misread(watch, kO, columns)) [[unlikely]]
        return exact_tile<kO, kR>(w, block, x, columns, c, c_stride, first);
    TileSimd<U>::template finish<kO, kR>(sums, c, c_stride, first);
  }
  template <int kO, int kR>
  static __attribute__((noinline)) void exact_tile(const Stored<MatrixFormat::kMxfp8>& w,
                                                   const E4m3Block<U, kO>& block, const Element* const* x,
                                                   int64_t columns, float* c, int64_t c_stride, bool first) {
    tile<MatrixFormat::kMxfp8, kO, kR, true>(w, block, 0, 0, x, columns, c, c_stride, first);
  }
};

}  // namespace sparrow::ops::cpu
