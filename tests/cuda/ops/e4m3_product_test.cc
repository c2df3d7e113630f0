// SPDX-License-Identifier: Apache-2.0
// Folded rows of MXFP8 in rows of e4m3, and products of them with rounded rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cuda/device_array.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/mx/expand.h"
#include "ops/cuda/mx/quantise_rows.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;

constexpr MatrixFormat kMxfp8 = MatrixFormat::kMxfp8;
constexpr size_t kGuard = 64;
// Of an element, relative to the sum of its products' sizes: the tensor cores keep 13 bits.
constexpr double kSumTolerance = 0x1p-11;
constexpr double kBf16Rounding = 0x1p-8;  // of the element itself

size_t place_of(int64_t row, int64_t columns, int64_t column) {
  return static_cast<size_t>(row * columns + column / 32 * 32 + e4m3_place(static_cast<int>(column % 32)));
}

// A random matrix with one scale for each row, as cells and as rows.
struct Folded {
  int rows, columns;
  std::vector<uint8_t> cells, codes;  // of codes: as tokens have them
  std::vector<float> scales;

  Folded(int rows, int columns)
      : rows(rows),
        columns(columns),
        cells(static_cast<size_t>(cell_matrix_bytes(kMxfp8, rows, columns))),
        codes(static_cast<size_t>(rows) * static_cast<size_t>(columns)) {
    std::mt19937 random(5);
    for (int r = 0; r < rows; ++r) {
      const auto scale = static_cast<uint8_t>(115 + random() % 8);
      scales.push_back(std::ldexp(1.0f, int{scale} - 127));
      for (int c = 0; c < columns; ++c) {
        const auto code = static_cast<uint8_t>(random() % 0x7f | (random() % 2 << 7));
        codes[place_of(r, columns, c)] = code;
        uint8_t* const cell = cells.data() + (r / kCellRows * (columns / kCellColumns) + c / kCellColumns) *
                                                 static_cast<ptrdiff_t>(cell_bytes(kMxfp8));
        const int row = r % kCellRows, column = c % kCellColumns;
        const uint32_t bits = cell_bits(kMxfp8, column, code);
        for (int i = 0; i < 4; ++i)
          cell[cell_word_at(kMxfp8, row, column) + i] ^= static_cast<uint8_t>(bits >> (8 * i));
        cell[cell_scale_at(kMxfp8, row, column / 32)] = cell_scale(kMxfp8, scale);
      }
    }
  }
  DeviceMatrix matrix(const DeviceArray<uint8_t>& on_device) const {
    return {.format = kMxfp8, .values = on_device.data(), .rows = rows, .cols = columns};
  }
};

TEST(E4m3Product, ExpandedRowsHaveTheOrderOfTokens) {
  for (const auto& [rows, columns] : {std::pair{16, 64}, {16, 192}, {128, 64}, {1472, 1536}, {6144, 192}}) {
    const Folded w(rows, columns);
    const DeviceArray<uint8_t> cells(w.cells), codes(w.codes.size() + kGuard);
    const DeviceArray<float> scales(w.scales.size() + 1);
    expand(w.matrix(cells), E4m3Rows{codes.data(), scales.data()}, nullptr);
    std::vector<uint8_t> got = codes.download();
    for (size_t i = w.codes.size(); i < got.size(); ++i) ASSERT_EQ(got[i], 0xff) << "written behind the end";
    got.resize(w.codes.size());
    EXPECT_EQ(got, w.codes) << rows << " x " << columns;
    std::vector<float> got_scales = scales.download();
    EXPECT_TRUE(std::isnan(got_scales.back())) << "written behind the end";
    got_scales.pop_back();
    EXPECT_EQ(got_scales, w.scales);
  }
}

TEST(E4m3Product, IsTheProductOfWhatWasRounded) {
  for (const auto& [n, k] : {std::pair{1472, 1024}, {256, 128}, {1408, 6144}}) {
    const Folded w(n, k);
    const DeviceArray<uint8_t> cells(w.cells);
    const DeviceMatrix matrix = w.matrix(cells);
    const DeviceArray<std::byte> workspace(kProductWorkspaceBytes);
    const DeviceArray<__nv_bfloat16> scratch(w.codes.size());
    const std::unique_ptr<Gemm> gemm = Gemm::create().value();
    gemm->set_workspace(workspace.data(), scratch.data());
    for (const int rows : {1, 300, 2048, 2049}) {
      std::mt19937 random(static_cast<uint32_t>(rows));
      std::normal_distribution<float> normal;
      std::vector<__nv_bfloat16> input(static_cast<size_t>(rows) * static_cast<size_t>(k));
      for (auto& value : input) value = __nv_bfloat16(normal(random));
      const DeviceArray<__nv_bfloat16> x(input), out(static_cast<size_t>(rows) * static_cast<size_t>(n));
      const DeviceArray<uint8_t> codes(input.size());
      const DeviceArray<float> scales(static_cast<size_t>(rows));
      const E4m3Rows rounded{codes.data(), scales.data()};
      quantise_rows({x.data(), rounded, rows, k}, nullptr);
      // 2,049 rows are not measured: what was is for fewer.
      if (rows != 2049) gemm->tune(std::span(&matrix, 1), rows, rounded, out.data(), nullptr);
      gemm->run(matrix, rows, rounded, out.data(), nullptr);
      const auto got = out.download();
      const auto got_codes = codes.download();
      const auto got_scales = scales.download();
      for (int i = 0; i < 500; ++i) {
        const auto r = static_cast<size_t>(random() % static_cast<uint32_t>(rows));
        const auto c = static_cast<size_t>(random() % static_cast<uint32_t>(n));
        double sum = 0, size = 0;
        for (size_t j = 0; j < static_cast<size_t>(k); ++j) {
          const double product = double{e4m3_to_float(w.codes[c * static_cast<size_t>(k) + j])} *
                                 double{e4m3_to_float(got_codes[r * static_cast<size_t>(k) + j])};
          sum += product, size += std::abs(product);
        }
        const double factor = double{w.scales[c]} * double{got_scales[r]};
        ASSERT_NEAR(__bfloat162float(got[r * static_cast<size_t>(n) + c]), sum * factor,
                    (kBf16Rounding * std::abs(sum) + kSumTolerance * size) * factor)
            << rows << " rows, " << r << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
