// SPDX-License-Identifier: Apache-2.0
// Linear layers of one row on a GPU, of bf16 weights and of cells, against float64 sums.
#include "ops/cuda/linear_held.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/device_array.h"
#include "cuda/ops/mx_matrix.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;

// Of an element, relative to the sum of its products' sizes: f32 sums of at most 6144 products.
constexpr double kF32Tolerance = 2e-6;
constexpr double kBf16Rounding = 0x1p-8;  // of the element itself
constexpr int kGuard = 64;                // elements behind a result that must stay as they are

std::vector<__nv_bfloat16> random_values(uint32_t seed, size_t count, float size) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<float> pick(-size, size);
  std::vector<__nv_bfloat16> values(count);
  for (auto& v : values) v = __nv_bfloat16(pick(rng));
  return values;
}

bool same_bits(const std::vector<__nv_bfloat16>& a, const std::vector<__nv_bfloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
}

struct Case {
  int out, in;
  MatrixFormat format = MatrixFormat::kBF16;
};

// The weights as the device has them, and as numbers.
struct HeldMatrix {
  std::vector<uint8_t> stored;
  std::vector<__nv_bfloat16> w;

  HeldMatrix(const Case& c) {
    const size_t count = size_t(c.out) * c.in;
    if (is_mx(c.format)) {
      MxMatrix m = random_mx_matrix(c.format, c.out, c.in, 1, 1);
      stored = std::move(m.cells), w.resize(count);
      std::memcpy(static_cast<void*>(w.data()), m.expanded.data(), count * sizeof(w[0]));
    } else {
      w = random_values(1, count, 1), stored.resize(count * sizeof(w[0]));
      std::memcpy(stored.data(), w.data(), stored.size());
    }
  }
};

class LinearHeldTest : public testing::TestWithParam<Case> {
 protected:
  const int out = GetParam().out, in = GetParam().in;
  const HeldMatrix matrix{GetParam()};
  const std::vector<__nv_bfloat16>&w = matrix.w, x = random_values(2, in, 1);
  const DeviceArray<uint8_t> w_device{matrix.stored};
  const DeviceArray<__nv_bfloat16> x_device{x};

  bool fits() const { return linear_held_fits(GetParam().format, out, in); }
  std::vector<__nv_bfloat16> product(const __nv_bfloat16* x) const {
    const DeviceArray<__nv_bfloat16> result(size_t(out) + kGuard);
    linear_held({{GetParam().format, w_device.data(), out, in}, x, result.data()}, nullptr);
    return result.download();
  }
};

TEST_P(LinearHeldTest, AgreesWithTheReference) {
  ASSERT_TRUE(fits());
  const std::vector<__nv_bfloat16> got = product(x_device.data());
  for (int row = 0; row < out; ++row) {
    double sum = 0, size = 0;
    for (int c = 0; c < in; ++c) {
      const double product = double{float(w[size_t(row) * in + c])} * double{float(x[c])};
      sum += product, size += std::abs(product);
    }
    ASSERT_NEAR(float(got[row]), sum, kF32Tolerance * size + kBf16Rounding * std::abs(sum)) << row;
  }
  for (int i = 0; i < kGuard; ++i) ASSERT_EQ(__nv_bfloat16_raw(got[out + i]).x, 0xffff) << i;
}

TEST_P(LinearHeldTest, RepeatsItsBits) {
  ASSERT_TRUE(fits());
  const std::vector<__nv_bfloat16> first = product(x_device.data());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(same_bits(product(x_device.data()), first));
}

std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return std::string(name_of(info.param.format)) + "_" + std::to_string(info.param.out) + "x" +
         std::to_string(info.param.in);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearHeldTest,
                         testing::Values(Case{16, 64}, Case{320, 128}, Case{24, 192}, Case{1000, 2048},
                                         Case{1401, 1088}, Case{1056, 3072}, Case{6144, 1024},
                                         Case{6143, 1024}, Case{4000, 1536}, Case{3000, 320}),
                         name_of_case);

std::vector<Case> cases_of_cells() {
  std::vector<Case> cases;
  for (const MatrixFormat format : {MatrixFormat::kMxfp8, MatrixFormat::kMxfp4})
    for (const Case c :
         {Case{16, 64}, Case{320, 128}, Case{48, 192}, Case{1008, 2048}, Case{1408, 1088}, Case{6144, 1024},
          Case{6144, 2048}, Case{1536, 6144}, Case{2000, 320}, Case{80, 5888}})
      cases.push_back({c.out, c.in, format});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cells, LinearHeldTest, testing::ValuesIn(cases_of_cells()), name_of_case);

TEST(LinearHeldFits, WhatTheRegistersHold) {
  const auto bf16_fits = [](int out, int in) { return linear_held_fits(MatrixFormat::kBF16, out, in); };
  EXPECT_TRUE(bf16_fits(6144, 1024));   // M3's output product on eight GPUs
  EXPECT_FALSE(bf16_fits(6400, 1024));  // more CTAs than two for an SM
  EXPECT_FALSE(bf16_fits(128, 3136));   // more columns than a CTA has threads for
  EXPECT_FALSE(bf16_fits(25008, 6144));
  const auto cells_fit = [](int out, int in) { return linear_held_fits(MatrixFormat::kMxfp8, out, in); };
  EXPECT_TRUE(cells_fit(6144, 1024));
  EXPECT_TRUE(cells_fit(1536, 6144));   // q, k, v and the index on eight GPUs
  EXPECT_TRUE(cells_fit(6144, 2048));   // the output product on four
  EXPECT_FALSE(cells_fit(3072, 6144));  // more CTAs than SMs
  EXPECT_FALSE(cells_fit(16, 6208));    // more columns than a CTA has warps for
}

}  // namespace
}  // namespace sparrow::ops::cuda
