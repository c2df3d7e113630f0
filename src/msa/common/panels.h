// SPDX-License-Identifier: Apache-2.0
// Matrix products C = A B in registers, for a block's keys and values. A's rows (queries, or p) lie as they
// are; B is packed into panels two vectors wide, so that lanes run along its columns and one load serves many
// rows of A. A step of the sum is an element: 32 bits that hold one f32, or two bf16 where the set multiplies
// pairs. Every sum takes its steps in ascending order, in one chain, whatever the shape of the tile that it
// is part of.
#pragma once

#include <cstdint>

#include "msa/common/simd.h"
#include "msa/common/transpose.h"
#include "msa/msa.h"

namespace msa {

// Memory that will be wanted soon, fetched a little at a time while products run: all at once it would take
// every slot that waits for memory, and the products' own loads would stand behind it.
class Fetch {
 public:
  // Over so many slices of products. nullptr: nothing to fetch.
  [[gnu::always_inline]] Fetch(const void* from, int64_t bytes, int slices)
      : at_(static_cast<const char*>(from)),
        end_(from == nullptr ? at_ : at_ + bytes),
        share_(bytes / slices) {}

  [[gnu::always_inline]] void some() {
    for (const char* stop = end_ - at_ > share_ ? at_ + share_ : end_; at_ < stop; at_ += 64)
      _mm_prefetch(at_, _MM_HINT_T1);
  }

 private:
  const char *at_, *end_;
  int64_t share_;  // bytes of a slice
};

// T is float or uint16_t (bf16), V a vector type of simd.h.
template <typename V, typename T>
struct Panels {
  using F = typename V::F;
  using I = typename V::I;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kWidth = 2 * kLanes;                 // columns of a panel
  static constexpr int kPanels = kHeadDim / kWidth;         // of a block's keys, and of its values
  static constexpr int kSteps = kHeadDim / V::kPerElement;  // of a sum over channels or a block's keys
  static constexpr int kElements = kSteps * kWidth;         // of a panel
  static constexpr int kTileRows = V::kLanes == 8 ? 4 : 8;  // their sums fill the registers
  static constexpr int kSlice = V::kLanes == 8 ? 64 : 16;   // steps between two fetches: a few hundred cycles
  static constexpr bool kWidens = sizeof(T) == 2 && V::kPerElement == 1;
  static_assert(kHeadDim == kBlock && V::kPerElement * sizeof(T) <= 4);

  // Rows of A with kHeadDim numbers each.
  static void pack_rows(const void* from, int64_t rows, float* to) {
    if constexpr (kWidens) {
      const T* source = static_cast<const T*>(from);
      for (int64_t i = 0; i < rows * kHeadDim; i += kLanes) V::store(to + i, V::load(source + i));
    } else {
      __builtin_memcpy(to, from, rows * kHeadDim * sizeof(T));
    }
  }

  // The panel of K^T whose columns are kWidth keys.
  static void pack_keys(const T* keys, float* panel) {
    constexpr int kWords = kHeadDim * sizeof(T) / 4;  // of a key
    const char* rows = reinterpret_cast<const char*>(keys);
    for (int column = 0; column < kWidth; column += kLanes)
      for (int word = 0; word < kWords; word += kLanes) {
        I r[kLanes];
        for (int i = 0; i < kLanes; ++i) r[i] = V::load_words(rows + ((column + i) * kWords + word) * 4);
        transpose(r);
        for (int i = 0; i < kLanes; ++i) {
          if constexpr (kWidens) {
            V::store(panel + 2 * (word + i) * kWidth + column, V::even(r[i]));
            V::store(panel + (2 * (word + i) + 1) * kWidth + column, V::odd(r[i]));
          } else {
            V::store(panel + (word + i) * kWidth + column, V::as_floats(r[i]));
          }
        }
      }
  }

  // The panel of V whose columns are kWidth channels, from the first one's place in the first of `keys` rows.
  // A pair's second row counts as zero past the end: it may hold anything, and 0 * NaN would spread.
  static void pack_values(const T* values, int keys, float* panel) {
    static constexpr T kZeros[kWidth] = {};
    for (int key = 0; key < keys; key += V::kPerElement, panel += kWidth) {
      const T* row = values + key * kHeadDim;
      const T* next = key + 1 < keys ? row + kHeadDim : kZeros;
      for (int column = 0; column < kWidth; column += kLanes) {
        if constexpr (V::kPerElement == 1)
          V::store(panel + column, V::load(row + column));
        else
          V::store(panel + column, V::pair(row + column, next + column));
      }
    }
  }

  static int steps_of(int keys) { return (keys + V::kPerElement - 1) / V::kPerElement; }

  template <int kRows>
  struct Tile {
    static constexpr int kCount = kRows;
    F sums[kRows][2];

    void clear() {
      for (auto& row : sums) row[0] = row[1] = V::zero();
    }
    // C's rows are `stride` floats apart.
    void load(const float* c, int64_t stride) {
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < 2; ++j) sums[i][j] = V::load(c + i * stride + j * kLanes);
    }
    void store(float* c, int64_t stride) const {
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < 2; ++j) V::store(c + i * stride + j * kLanes, sums[i][j]);
    }
    // Adds the product of kRows rows of A, `stride` elements apart, and a panel of B.
    void add(const float* a, int64_t stride, const float* panel, int steps, Fetch& fetch) {
      for (int step = 0; step < steps;) {
        fetch.some();
        for (const int end = steps - step < kSlice ? steps : step + kSlice; step < end; ++step) {
          const F b[2] = {V::load(panel + step * kWidth), V::load(panel + step * kWidth + kLanes)};
          for (int i = 0; i < kRows; ++i) {
            const F x = V::set1(a[i * stride + step]);
            for (int j = 0; j < 2; ++j) sums[i][j] = V::add_products(x, b[j], sums[i][j]);
          }
        }
      }
    }
  };

  // Covers rows [first, end) with tiles: body(tile, its first row).
  template <int kRows = kTileRows, typename Body>
  static void each_tile(int first, int end, const Body& body) {
    for (; first + kRows <= end; first += kRows) {
      Tile<kRows> tile;
      body(tile, first);
    }
    if constexpr (kRows > 1) each_tile<kRows / 2>(first, end, body);
  }
};

}  // namespace msa
