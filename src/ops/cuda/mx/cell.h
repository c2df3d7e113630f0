// SPDX-License-Identifier: Apache-2.0
// The cell: how MXFP8 and MXFP4 matrices lie in GPU memory, for all kernels. Free of CUDA.
//
// A cell holds 16 rows by 64 columns of a matrix: the codes, then 32 bytes of scales. A matrix is [rows / 16]
// [columns / 64] cells, so that 16 rows are one contiguous stream.
//
// Codes lie in the order in which the lanes of a warp multiply with them (A fragments of m16n8k16, or of a
// warpgroup's product): lane l = 4 g + q owns bytes 16 l to 16 l + 15 of each 512, in words of 4 bytes, and a
// word holds codes of one row, g or g + 8, in columns 2 q, 2 q + 1, 2 q + 8, 2 q + 9 of a 16. Even columns
// have the low 16 bits of a word, odd ones the high 16 bits. There the bits of codes are spread so that
// shifts and one mask bring them where a bf16 has its sign, the low bits of its exponent and the high bits of
// its mantissa: that bf16 is the code's number times 2^-120 (e4m3) or 2^-126 (e2m1), and the scale byte is
// the exponent of what it must be multiplied with.
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

// Two numbers of a word as bf16, those of columns 8 part + 2 q (in the low half) and the next one. MXFP8 has
// two parts in a word, MXFP4 four. Most need the mask alone, or one shift before it. The last part is the
// bits that are left over, which no single shift brings to their places, but word << 4 ^ word >> 4 does.
constexpr uint32_t cell_pair(MatrixFormat format, int part, uint32_t word) {
  const uint32_t crossed = word << 4 ^ word >> 4;
  if (format == MatrixFormat::kMxfp8) return (part == 0 ? word : crossed) & 0x87F087F0u;
  const uint32_t turned = word << 10 | word >> 22;
  return (part == 0 ? word : part == 1 ? word << 6 : part == 2 ? turned : crossed) & 0x81C081C0u;
}

// What must stand in a word for its crossed part to be `number`. Each bit of that comes from two places, 4
// below and 4 above. `up` and `down` say which bits a number may set there; the place above bit 23 is the one
// below bit 31, and so on down to bit 7, so that these depend on each other.
constexpr uint32_t cell_crossed_bits(uint32_t number, uint32_t up, uint32_t down) {
  uint32_t chain = number >> 4 & 0x08080808u;
  chain ^= chain >> 8, chain ^= chain >> 16;
  return (number << 4 & up) | (number >> 4 & down) | chain;
}

// What a code adds to its word, by exclusive or. Bits of the other parts come through in the crossed one, and
// are taken out of it here.
constexpr uint32_t cell_bits(MatrixFormat format, int column, uint32_t code) {
  const int half = column % 2 * 16;
  if (format == MatrixFormat::kMxfp8) {
    constexpr uint32_t kUp = 0x70007000u, kDown = 0x00070007u;
    const uint32_t number = ((code >> 7) << 15 | (code & 0x7f) << 4) << half;
    if (column % 16 >= 8) return cell_crossed_bits(number, kUp, kDown);
    return number ^ (number << 8 & kUp) ^ (number >> 8 & kDown);
  }
  constexpr uint32_t kUp = 0x04000400u, kDown = 0x00100010u;
  const uint32_t number = (code >> 3 << 15 | (code & 7) << 6) << half;
  if (column % 32 >= 24) return cell_crossed_bits(number, kUp, kDown);
  const int part = column % 32 / 8;
  const uint32_t bits = part == 0 ? number : part == 1 ? number >> 6 : number >> 10 | number << 22;
  return bits ^ (bits << 8 & kUp) ^ (bits >> 8 & kDown);
}

}  // namespace sparrow::ops::cuda
