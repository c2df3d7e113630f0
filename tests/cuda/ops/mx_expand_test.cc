// SPDX-License-Identifier: Apache-2.0
// Quantised matrices on a GPU as bf16, and products with them: the same bits as with the expanded matrix.
#include "ops/cuda/mx/expand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "cuda/device_array.h"
#include "cuda/ops/mx_matrix.h"
#include "ops/cuda/gemm.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;

constexpr size_t kGuard = 64;  // elements behind a result that must stay as they are
// Of an element, relative to the sum of its products' sizes: f32 sums of a thousand products.
constexpr double kF32Tolerance = 2e-6;
constexpr double kBf16Rounding = 0x1p-8;  // of the element itself

std::vector<__nv_bfloat16> random_rows(int rows, int columns) {
  std::mt19937 random(static_cast<uint32_t>(rows));
  std::uniform_real_distribution<float> pick(-1, 1);
  std::vector<__nv_bfloat16> x(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (auto& value : x) value = __nv_bfloat16(pick(random));
  return x;
}

class MxExpand : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  // The same matrix as cells and as bf16, on the device.
  struct Pair {
    MxMatrix host;
    DeviceArray<uint8_t> cells;
    DeviceArray<BFloat16> expanded;
    DeviceMatrix quantised, plain;

    Pair(MatrixFormat format, int rows, int columns, uint64_t seed)
        : host(random_mx_matrix(format, rows, columns, seed, 0.05f)),
          cells(host.cells),
          expanded(host.expanded),
          quantised{.format = format, .values = cells.data(), .rows = rows, .cols = columns},
          plain(bf16_matrix(expanded.data(), rows, columns)) {}
  };
};

TEST_P(MxExpand, GivesEveryNumberItsPlace) {
  for (const auto& [rows, columns] : {std::pair{16, 64}, {16, 192}, {128, 64}, {1472, 1536}, {6144, 192}}) {
    const Pair pair(GetParam(), rows, columns, 1);
    const size_t count = pair.host.expanded.size();
    const DeviceArray<BFloat16> out(count + kGuard);
    expand(pair.quantised, reinterpret_cast<__nv_bfloat16*>(out.data()), nullptr);
    const std::vector<BFloat16> got = out.download();
    for (size_t i = 0; i < count; ++i)
      ASSERT_EQ(got[i].bits, pair.host.expanded[i].bits) << i << " of " << rows << " x " << columns;
    for (size_t i = count; i < got.size(); ++i) ASSERT_EQ(got[i].bits, 0xffff) << "written behind the end";
  }
}

// With and without batch invariance the library gets the same numbers, whatever they were stored as.
TEST_P(MxExpand, ProductsHaveTheBitsOfTheExpandedMatrix) {
  constexpr int kRows = 512, kColumns = 384;
  const Pair pair(GetParam(), kRows, kColumns, 2);
  const DeviceArray<std::byte> workspace(kProductWorkspaceBytes);
  const DeviceArray<__nv_bfloat16> scratch(size_t{kRows} * kColumns);
  const std::unique_ptr<Gemm> gemm = Gemm::create(/*batch_invariant=*/true).value();
  gemm->set_workspace(workspace.data(), scratch.data());
  for (const int rows : {1, 2, 17, 64, 65, 1000}) {
    const DeviceArray<__nv_bfloat16> x(random_rows(rows, kColumns));
    const auto product = [&](const DeviceMatrix& w) {
      const DeviceArray<__nv_bfloat16> out(static_cast<size_t>(rows) * kRows);
      gemm->tune(std::span(&w, 1), rows, x.data(), out.data(), nullptr);
      gemm->run(w, rows, x.data(), out.data(), nullptr);
      return out.download();
    };
    const auto got = product(pair.quantised), expected = product(pair.plain);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(got[0])), 0) << rows << " rows";
  }
}

// What is measured to be fastest is right, for every number of rows.
TEST_P(MxExpand, TunedProductsAreNear) {
  constexpr int kRows = 1472, kColumns = 1024;
  const Pair pair(GetParam(), kRows, kColumns, 3);
  const DeviceArray<std::byte> workspace(kProductWorkspaceBytes);
  const DeviceArray<__nv_bfloat16> scratch(size_t{kRows} * kColumns);
  const std::unique_ptr<Gemm> gemm = Gemm::create().value();
  gemm->set_workspace(workspace.data(), scratch.data());
  for (const int rows : {1, 2, 3, 8, 31, 64, 65, 300}) {
    const std::vector<__nv_bfloat16> input = random_rows(rows, kColumns);
    const DeviceArray<__nv_bfloat16> x(input);
    const DeviceArray<__nv_bfloat16> out(static_cast<size_t>(rows) * kRows);
    gemm->tune(std::span(&pair.quantised, 1), rows, x.data(), out.data(), nullptr);
    gemm->run(pair.quantised, rows, x.data(), out.data(), nullptr);
    const std::vector<__nv_bfloat16> got = out.download();
    for (int i = 0; i < rows; i += std::max(1, rows / 3))
      for (int n = 0; n < kRows; ++n) {
        double sum = 0, size = 0;
        for (int k = 0; k < kColumns; ++k) {
          const double product = double{to_float(pair.host.expanded[static_cast<size_t>(n) * kColumns + k])} *
                                 double{__bfloat162float(input[static_cast<size_t>(i) * kColumns + k])};
          sum += product;
          size += std::abs(product);
        }
        ASSERT_NEAR(__bfloat162float(got[static_cast<size_t>(i) * kRows + n]), sum,
                    kBf16Rounding * std::abs(sum) + kF32Tolerance * size)
            << rows << " rows, " << n;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MxExpand, ::testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace sparrow::ops::cuda
