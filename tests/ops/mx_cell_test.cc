// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/mx/cell.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "base/dtype.h"

namespace sparrow::ops::cuda {
namespace {

class MxCell : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  const MatrixFormat format = GetParam();
  const uint32_t codes = format == MatrixFormat::kMxfp8 ? 256 : 16;
};

TEST_P(MxCell, EveryBitBelongsToOneCode) {
  std::vector<uint32_t> words(static_cast<size_t>(cell_code_bytes(format)) / 4);
  for (int row = 0; row < kCellRows; ++row)
    for (int column = 0; column < kCellColumns; ++column) {
      uint32_t& word = words[static_cast<size_t>(cell_word_at(format, row, column)) / 4];
      const uint32_t bits = cell_bits(format, column, codes - 1);
      EXPECT_EQ(word & bits, 0u) << row << ", " << column;
      EXPECT_EQ(std::popcount(bits), codes == 256 ? 8 : 4);
      word |= bits;
    }
  for (const uint32_t word : words) EXPECT_EQ(word, ~0u);
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
