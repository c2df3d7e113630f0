// SPDX-License-Identifier: Apache-2.0
// MXFP8 matrices for products of e4m3 with e4m3. Free of CUDA.
//
// Such a product takes 32 columns at a time, and a scale for every 32 would cost as many additions as
// products. So a row is folded: its codes are expressed anew with one power of two, and only the few that
// become subnormal round. Folded rows are cells as before; all scale bytes of a row are the same.
//
// A word of a cell holds columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of 16. Two words of a row, of 32 columns,
// become two registers of an operand. The order of columns inside 32 is then that of e4m3_place(), and tokens
// are stored in the same.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/cuda/mx/cell.h"

namespace sparrow::ops::cuda {

// Rows of activations as e4m3: each has one scale, its largest number / 448, and columns lie in the order of
// e4m3_place().
struct E4m3Rows {
  uint8_t* codes = nullptr;  // [rows, columns], 16-byte aligned
  float* scales = nullptr;   // [rows]
};

// By how many powers of two a code that is not zero may grow. Larger codes never have more room.
constexpr int e4m3_room(uint32_t code) {
  const int magnitude = static_cast<int>(code & 0x7f), exponent = magnitude >> 3;
  if (exponent > 0) return 15 - exponent - (magnitude % 8 == 7 ? 1 : 0);  // 480 would be NaN
  return 18 - static_cast<int>(std::bit_width(code & 0x7f));
}

// The code of 2^shift times a code's number, which is not larger than 448: nearest, ties to even.
constexpr uint32_t fold_code(uint32_t code, int shift) {
  const int magnitude = static_cast<int>(code & 0x7f);
  int exponent = magnitude >> 3, digits = magnitude & 7;
  if (exponent > 0)
    digits += 8;
  else
    exponent = 1;
  exponent += shift;
  for (; digits < 8 && exponent > 1; --exponent) digits *= 2;
  if (exponent < 1) {
    const int lost = exponent < -4 ? 5 : 1 - exponent;  // five digits less is zero
    const int half = 1 << (lost - 1), kept = digits >> lost, rest = digits & (2 * half - 1);
    digits = kept + (rest > half || (rest == half && kept % 2 == 1) ? 1 : 0);
    exponent = 1;
  }
  if (digits == 0) exponent = 1;
  return (code & 0x80) | static_cast<uint32_t>((exponent - 1) * 8 + digits);
}

// The scale of a row is the largest of what its groups of 32 need: the smallest that keeps the group's
// largest code in range. A group of zeros needs none.
constexpr int folded_scale(uint32_t largest_code, int scale) {
  if ((largest_code & 0x7f) == 0) return 0;
  const int needed = scale - e4m3_room(largest_code);
  return needed < 0 ? 0 : needed;
}

// Where a column of 32 lies in a row of tokens.
constexpr int e4m3_place(int column) {
  return column % 16 / 8 * 16 + column % 8 / 2 * 4 + column % 2 * 2 + 1 - column % 32 / 16;
}

// From the words of a row's columns 0 to 15 and 16 to 31 to the registers of places 4 q to 4 q + 3 and of 16
// more.
constexpr void e4m3_quads(uint32_t low, uint32_t high, uint32_t& first, uint32_t& second) {
  const auto bytes = [&](int part) {
    const uint32_t a = cell_pair(MatrixFormat::kMxfp8, part, low);
    const uint32_t b = cell_pair(MatrixFormat::kMxfp8, part, high);
    return (a & 0x80008000u) | (a << 4 & 0x7F007F00u) | (b >> 8 & 0x00800080u) | (b >> 4 & 0x007F007Fu);
  };
  first = bytes(0), second = bytes(1);
}

}  // namespace sparrow::ops::cuda
