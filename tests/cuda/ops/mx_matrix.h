// SPDX-License-Identifier: Apache-2.0
// Random MXFP8 and MXFP4 matrices for tests of kernels: as cells, and what they stand for as bf16.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow::ops::cuda {

inline float e2m1_value(uint32_t code) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8) ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

struct MxMatrix {
  std::vector<uint8_t> cells;
  std::vector<BFloat16> expanded;  // [rows, columns]
};

// Numbers of order `spread`; some groups are zeros, some far smaller than their neighbours.
inline MxMatrix random_mx_matrix(MatrixFormat format, int64_t rows, int64_t columns, uint64_t seed,
                                 float spread) {
  std::mt19937_64 random(seed);
  MxMatrix m;
  m.cells.assign(static_cast<size_t>(cell_matrix_bytes(format, rows, columns)), 0);
  m.expanded.resize(static_cast<size_t>(rows * columns));
  const bool is_mxfp8 = format == MatrixFormat::kMxfp8;
  // The middle of the codes' magnitudes is 2^-1 (e4m3's are spread over far more) or about 2.
  const int exponent = std::ilogb(spread) - (is_mxfp8 ? 4 : 1);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t cell = r / kCellRows * (columns / kCellColumns) + c / kCellColumns;
      uint8_t* const bytes = m.cells.data() + cell * cell_bytes(format);
      const int row = static_cast<int>(r % kCellRows), column = static_cast<int>(c % kCellColumns);
      uint8_t& stored = bytes[cell_scale_at(format, row, column / 32)];
      if (c % kScaleGroup == 0) {
        const uint64_t kind = random() % 16;
        const int scale = kind == 0 ? 127 - 60 : 127 + exponent - static_cast<int>(random() % 3);
        stored = cell_scale(format, static_cast<uint8_t>(scale));
      }
      uint32_t code = static_cast<uint32_t>(random()) & (is_mxfp8 ? 0xFF : 0xF);
      if (is_mxfp8 && (code & 0x7F) == 0x7F) code ^= 1;
      if (is_mxfp8) code = (code & 0x80) | ((code & 0x7F) % 0x60);  // numbers up to 16 or so
      const uint32_t bits = cell_bits(format, column, code);
      const int at = cell_word_at(format, row, column);
      for (int i = 0; i < 4; ++i) bytes[at + i] ^= static_cast<uint8_t>(bits >> (8 * i));
      const int power = int{stored} - cell_scale(format, 0) - 127;
      const float value = is_mxfp8 ? e4m3_to_float(static_cast<uint8_t>(code)) : e2m1_value(code);
      m.expanded[static_cast<size_t>(r * columns + c)] = to_bf16(std::ldexp(value, power));
    }
  return m;
}

}  // namespace sparrow::ops::cuda
