// SPDX-License-Identifier: Apache-2.0
// The cell: how MXFP8 and MXFP4 matrices lie in GPU memory, for all kernels. Free of CUDA.
//
// A cell holds 16 rows by 64 columns of a matrix: the codes, then 32 bytes of scales. A matrix is [rows / 16]
// [columns / 64] cells, so that 16 rows are one contiguous stream.
//
// Codes lie in the order in which the lanes of a warp multiply with them (A fragments of m16n8k16, or of a
// warpgroup's product): lane l = 4 g + q owns bytes 16 l to 16 l + 15 of each 512, in words of 4 bytes, and a
// word holds codes of one row, g or g + 8, in columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of a 16. Even columns
// have the low 16 bits of a word, odd ones the high 16 bits. There the bits of a code are spread so that
// masks and shifts bring them where a bf16 has its sign, the low bits of its exponent and the high bits of
// its mantissa: that bf16 is the code's number times 2^-120 (e4m3) or 2^-126 (e2m1), and the scale byte is
// the exponent of the bf16 that it must be multiplied with.
#pragma once

#include <cstdint>

#include "base/matrix_format.h"

namespace sparrow::ops::cuda {

inline constexpr int kCellRows = 16, kCellColumns = 64, kCellScaleBytes = 32;

constexpr int cell_code_bytes(MatrixFormat format) {
  return kCellRows * kCellColumns / static_cast<int>(values_per_element(format));
}
constexpr int cell_bytes(MatrixFormat format) {
  return cell_code_bytes(format) + kCellScaleBytes;
}
// Of a matrix whose rows are a multiple of 16 and whose columns are one of 64.
constexpr int64_t cell_matrix_bytes(MatrixFormat format, int64_t rows, int64_t columns) {
  return rows / kCellRows * (columns / kCellColumns) * cell_bytes(format);
}

// The largest scale byte of a file that a cell can hold: weights up to 57,344 (MXFP8) or 12 (MXFP4).
constexpr int max_cell_scale(MatrixFormat format) {
  return format == MatrixFormat::kMxfp8 ? 134 : 128;
}
// From a file's scale byte to a cell's.
constexpr uint8_t cell_scale(MatrixFormat format, uint8_t scale) {
  return static_cast<uint8_t>(scale + (format == MatrixFormat::kMxfp8 ? 120 : 126));
}

// Where the scale of a row's group of 32 columns (0 or 1) lies in a cell.
constexpr int cell_scale_at(MatrixFormat format, int row, int group) {
  return cell_code_bytes(format) + row % 8 * 4 + group * 2 + row / 8;
}

// Where the word lies that holds the code of a row and column.
constexpr int cell_word_at(MatrixFormat format, int row, int column) {
  const int lane = row % 8 * 4 + column % 8 / 2;
  if (format == MatrixFormat::kMxfp8)
    return column / 32 * 512 + lane * 16 + (column % 32 / 16 * 2 + row / 8) * 4;
  return lane * 16 + (column / 32 * 2 + row / 8) * 4;
}

// A code's bits, spread, where they stand in that word.
constexpr uint32_t cell_bits(MatrixFormat format, int column, uint32_t code) {
  const int half = column % 2 * 16;
  if (format == MatrixFormat::kMxfp8) {
    const uint32_t sign = code >> 7, high = code >> 4 & 7, low = code & 15;
    const bool first = column % 16 < 8;
    return (first ? sign << 15 | high << 8 | low << 4 : sign << 11 | high << 12 | low) << half;
  }
  // The first three are where a bf16 has them, turned by 0, 6 and 10 bits of the whole word: bits of the
  // third come into the other half. What is left for the fourth takes two shifts.
  const uint32_t sign = code >> 3 & 1, magnitude = code & 7;
  switch (column % 32 / 8) {
    case 0:
      return (sign << 15 | magnitude << 6) << half;
    case 1:
      return (sign << 9 | magnitude) << half;
    case 2:
      return sign << 5 << half | magnitude << 12 << (16 - half);
    default:
      return (sign << 11 | (magnitude & 1) << 10 | magnitude >> 1 << 3) << half;
  }
}

}  // namespace sparrow::ops::cuda
