// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/mx/cell.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/dtype.h"

namespace sparrow::ops::cuda {
namespace {

class MxCell : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  const MatrixFormat format = GetParam();
  const uint32_t codes = format == MatrixFormat::kMxfp8 ? 256 : 16;
};

// The bf16 numbers of a code, whatever its scale: it has one sign and its magnitude in the exponent's end and
// the mantissa's beginning.
uint32_t number_of(MatrixFormat format, uint32_t code) {
  return format == MatrixFormat::kMxfp8 ? code >> 7 << 15 | (code & 0x7f) << 4
                                        : code >> 3 << 15 | (code & 7) << 6;
}

TEST_P(MxCell, PairsOfAWordAreItsCodes) {
  std::mt19937 rng(1);
  std::vector<uint32_t> words(static_cast<size_t>(cell_code_bytes(format)) / 4);
  std::vector<uint32_t> of(kCellRows * kCellColumns);
  const auto word_at = [&](int row, int column) -> uint32_t& {
    return words[static_cast<size_t>(cell_word_at(format, row, column)) / 4];
  };
  for (int i = 0; i < kCellRows * kCellColumns; ++i) {
    const uint32_t code = of[static_cast<size_t>(i)] = static_cast<uint32_t>(rng()) % codes;
    word_at(i / kCellColumns, i % kCellColumns) ^= cell_bits(format, i % kCellColumns, code);
  }
  const int columns = format == MatrixFormat::kMxfp8 ? 16 : 32;  // of a word
  for (int i = 0; i < kCellRows * kCellColumns; ++i) {
    const int row = i / kCellColumns, column = i % kCellColumns;
    const uint32_t pair = cell_pair(format, column % columns / 8, word_at(row, column));
    ASSERT_EQ(pair >> column % 2 * 16 & 0xffff, number_of(format, of[static_cast<size_t>(i)]))
        << row << ", " << column;
  }
}

TEST_P(MxCell, EveryScaleHasItsByte) {
  std::vector<int> uses(static_cast<size_t>(cell_bytes(format)));
  for (int row = 0; row < kCellRows; ++row)
    for (int group = 0; group < 2; ++group) ++uses[static_cast<size_t>(cell_scale_at(format, row, group))];
  for (int i = 0; i < cell_bytes(format); ++i)
    EXPECT_EQ(uses[static_cast<size_t>(i)], i < cell_code_bytes(format) ? 0 : 1) << i;
}

TEST_P(MxCell, ScalesFillTheExponentOfABf16) {
  EXPECT_EQ(cell_scale(format, static_cast<uint8_t>(max_cell_scale(format))), 254);
  EXPECT_GT(cell_scale(format, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, MxCell, ::testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace sparrow::ops::cuda
