// SPDX-License-Identifier: Apache-2.0
// Rows folded on the device: numbers are those of the scalar rule, and rows that cells cannot hold are left
// alone.
#include "model/cuda/fold_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/matrix_format.h"
#include "cuda/device_array.h"
#include "ops/cuda/mx/fold.h"

namespace sparrow {
namespace {

using test::DeviceArray;

struct Rows {
  int64_t rows, columns;
  std::vector<uint8_t> codes, scales;

  Rows(int64_t rows, int64_t columns, uint64_t seed)
      : rows(rows),
        columns(columns),
        codes(static_cast<size_t>(rows * columns)),
        scales(static_cast<size_t>(rows * columns / kScaleGroup)) {
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < codes.size(); ++i) {
      const bool is_zero = random() % 8 == 0 && i / kScaleGroup % 5 == 0;
      codes[i] = static_cast<uint8_t>(is_zero ? 0 : random() % 0x7f | (random() % 2 << 7));
    }
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(110 + random() % 12);
  }
  double number(int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row * columns + column);
    return std::ldexp(e4m3_to_float(codes[at]), int{scales[at / kScaleGroup]} - 127);
  }
};

// Folds a copy; returns how many codes the kernel says have changed.
unsigned long long fold(Rows& m) {
  const DeviceArray<uint8_t> codes(m.codes), scales(m.scales);
  const DeviceArray<unsigned long long> changed(std::vector<unsigned long long>{5});
  EXPECT_EQ(launch_fold_rows({codes.data(), scales.data(), m.rows, m.columns, changed.data()}, nullptr),
            cudaSuccess);
  m.codes = codes.download(), m.scales = scales.download();
  return changed.download()[0] - 5;
}

TEST(FoldRows, OneScaleARowAndTheNearestNumbers) {
  for (const int64_t columns : {32, 384, 6144}) {
    const Rows before(37, columns, 3);
    Rows after = before;
    const unsigned long long counted = fold(after);
    unsigned long long changed = 0;
    for (int64_t r = 0; r < before.rows; ++r) {
      const auto first = static_cast<size_t>(r * columns / kScaleGroup);
      for (int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>(r * columns + c);
        ASSERT_EQ(after.scales[at / kScaleGroup], after.scales[first]) << r;
        const int shift = int{before.scales[at / kScaleGroup]} - int{after.scales[first]};
        ASSERT_EQ(after.codes[at], ops::cuda::fold_code(before.codes[at], shift)) << r << ", " << c;
        changed += before.number(r, c) != after.number(r, c) ? 1 : 0;
      }
      // No smaller scale would do.
      double largest = 0;
      for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(before.number(r, c)));
      if (largest > 0) {
        EXPECT_GT(std::ldexp(largest, 127 - int{after.scales[first]} + 1), 448) << r;
      }
    }
    EXPECT_EQ(counted, changed);
  }
}

TEST(FoldRows, RowsThatCellsCannotHoldStayAsTheyAre) {
  Rows m(3, 128, 4);
  m.codes[128 + 70] = 0xff;
  m.scales[2 * 4 + 1] = 200;
  Rows folded = m;
  fold(folded);
  for (size_t i = 128; i < m.codes.size(); ++i) EXPECT_EQ(folded.codes[i], m.codes[i]) << i;
  for (size_t i = 4; i < m.scales.size(); ++i) EXPECT_EQ(folded.scales[i], m.scales[i]) << i;
}

}  // namespace
}  // namespace sparrow
