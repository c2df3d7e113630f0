// SPDX-License-Identifier: Apache-2.0
// Linear layers of one row on a GPU against float64 sums, and with the norm before them against the
// kernels that do one after the other.
#include "ops/cuda/linear_held.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cuda/device_array.h"

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
};

class LinearHeldTest : public testing::TestWithParam<Case> {
 protected:
  const int out = GetParam().out, in = GetParam().in;
  const std::vector<__nv_bfloat16> w = random_values(1, size_t(out) * in, 1), x = random_values(2, in, 1);
  const DeviceArray<__nv_bfloat16> w_device{w}, x_device{x};

  std::vector<__nv_bfloat16> product(const __nv_bfloat16* x) const {
    const DeviceArray<__nv_bfloat16> result(size_t(out) + kGuard);
    linear_held({bf16_matrix(w_device.data(), out, in), x, result.data()}, nullptr);
    return result.download();
  }
};

TEST_P(LinearHeldTest, AgreesWithTheReference) {
  ASSERT_TRUE(linear_held_fits(out, in));
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
  ASSERT_TRUE(linear_held_fits(out, in));
  const std::vector<__nv_bfloat16> first = product(x_device.data());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(same_bits(product(x_device.data()), first));
}

INSTANTIATE_TEST_SUITE_P(Shapes, LinearHeldTest,
                         testing::Values(Case{16, 64}, Case{320, 128}, Case{24, 192}, Case{1000, 2048},
                                         Case{1401, 1088}, Case{1056, 3072}, Case{6144, 1024},
                                         Case{6143, 1024}, Case{4000, 1536}, Case{3000, 320}),
                         [](const auto& info) {
                           return std::to_string(info.param.out) + "x" + std::to_string(info.param.in);
                         });

TEST(LinearHeldFits, WhatTheRegistersHold) {
  EXPECT_TRUE(linear_held_fits(6144, 1024));   // M3's output product on eight GPUs
  EXPECT_FALSE(linear_held_fits(6400, 1024));  // more CTAs than two for an SM
  EXPECT_FALSE(linear_held_fits(128, 3136));   // more columns than a CTA has threads for
  EXPECT_FALSE(linear_held_fits(25008, 6144));
}

}  // namespace
}  // namespace sparrow::ops::cuda
