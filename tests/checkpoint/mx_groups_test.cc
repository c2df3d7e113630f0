// SPDX-License-Identifier: Apache-2.0
// Rounding to MXFP8 and MXFP4 against their definitions, number by number.
#include "checkpoint/mx/mx_groups.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"

namespace sparrow {
namespace {

constexpr size_t kGroup = 32;
constexpr float kInf = std::numeric_limits<float>::infinity();

// What a code stands for, by definition: sign, exponent and mantissa of so many bits.
double number_of(MatrixFormat format, int code) {
  const bool fp8 = format == MatrixFormat::kMxfp8;
  const int mantissa_bits = fp8 ? 3 : 1, bias = fp8 ? 7 : 1, sign_bit = fp8 ? 128 : 8;
  const int magnitude = code & (sign_bit - 1), sign = code & sign_bit ? -1 : 1;
  const int exponent = magnitude >> mantissa_bits, mantissa = magnitude & ((1 << mantissa_bits) - 1);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

struct Rounded {
  std::vector<int> codes;
  std::vector<uint8_t> scales;
  RoundingError error;
  int64_t refused;
};

Rounded rounded(MatrixFormat format, const std::vector<float>& values) {
  const bool fp8 = format == MatrixFormat::kMxfp8;
  std::vector<uint8_t> bytes(fp8 ? values.size() : values.size() / 2), scales(values.size() / kGroup);
  const RoundedGroups groups = round_groups(format, values, bytes.data(), scales.data());
  Rounded out{{}, scales, groups.error, groups.refused};
  for (size_t i = 0; i < values.size(); ++i)
    out.codes.push_back(fp8 ? bytes[i] : bytes[i / 2] >> (i % 2 * 4) & 15);
  return out;
}

// A group that begins like this and goes on with zeros.
std::vector<float> group_of(std::vector<float> first) {
  first.resize(kGroup, 0.0f);
  return first;
}

class MxGroups : public ::testing::TestWithParam<MatrixFormat> {
 protected:
  MatrixFormat format() const { return GetParam(); }
  bool fp8() const { return format() == MatrixFormat::kMxfp8; }
  int num_magnitudes() const { return fp8() ? 127 : 8; }  // 0x7f is NaN
  int sign_bit() const { return fp8() ? 128 : 8; }
  int largest_scale() const { return fp8() ? 134 : 128; }
  // The scale byte that the format's rule gives a group with this largest number.
  int scale_by_rule(float largest) const {
    if (largest == 0) return fp8() ? 0 : 1;
    if (fp8()) {
      int exponent = -127;
      while (std::ldexp(448.0, exponent) < largest) ++exponent;
      return exponent + 127;
    }
    int exponent = 0;
    const double mantissa = 2 * std::frexp(double{largest}, &exponent);  // in [1, 2), of 2^(exponent - 1)
    return std::max(exponent - 1 + (mantissa >= 1.75 ? 1 : 0) - 2 + 127, 0);
  }
  // The nearest code, of two equally near ones the even, without a sign if it is zero.
  int nearest(double x) const {
    int best = 0;
    for (int code = 1; code < num_magnitudes(); ++code) {
      const double there = std::fabs(number_of(format(), code) - std::fabs(x));
      const double here = std::fabs(number_of(format(), best) - std::fabs(x));
      if (there < here || (there == here && code % 2 == 0)) best = code;
    }
    return best != 0 && x < 0 ? best | sign_bit() : best;
  }
};

TEST_P(MxGroups, EveryNumberOfTheFormatKeepsItsValueAtEveryScale) {
  const int codes = fp8() ? 256 : 16;
  for (int scale = 0; scale <= largest_scale(); ++scale) {
    // Each code in the company of zeros, and all of them together.
    std::vector<uint8_t> bytes, scales;
    for (int code = 0; code < codes; ++code) {
      if ((code & (sign_bit() - 1)) >= num_magnitudes()) continue;
      bytes.push_back(static_cast<uint8_t>(fp8() ? code : code << 4));
      bytes.resize(bytes.size() + (fp8() ? 31 : 15));
    }
    for (int code = 0; code < 256; ++code)
      bytes.push_back(static_cast<uint8_t>(fp8() && code % 128 == 127 ? 0 : code));
    const size_t values = fp8() ? bytes.size() : bytes.size() * 2;
    scales.assign(values / kGroup, static_cast<uint8_t>(scale));
    std::vector<float> expanded(values);
    expand_groups(format(), bytes.data(), scales.data(), expanded);
    for (size_t i = 0; i < values; ++i) {
      const int code = fp8() ? bytes[i] : bytes[i / 2] >> (i % 2 * 4) & 15;
      ASSERT_EQ(expanded[i], std::ldexp(number_of(format(), code), scale - 127)) << code << " " << scale;
    }
    const Rounded again = rounded(format(), expanded);
    ASSERT_EQ(again.refused, -1);
    ASSERT_EQ(again.error.error_squares, 0.0);
    ASSERT_EQ(again.error.largest, 0.0);
    for (size_t i = 0; i < values; ++i)
      ASSERT_EQ(std::ldexp(number_of(format(), again.codes[i]), again.scales[i / kGroup] - 127), expanded[i]);
  }
}

TEST_P(MxGroups, ScalesAndCodesAreThoseOfTheDefinition) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(-40, fp8() ? 15 : 2), depth(0, 20);
  for (int run = 0; run < 3000; ++run) {
    std::vector<float> values(kGroup);
    const int top = exponent(rng);
    for (float& x : values) x = std::ldexp(mantissa(rng), top - (run % 2 == 0 ? 0 : depth(rng)));
    float largest = 0;
    for (const float x : values) largest = std::max(largest, std::fabs(x));
    const Rounded got = rounded(format(), values);
    ASSERT_EQ(got.refused, -1);
    ASSERT_EQ(got.scales[0], scale_by_rule(largest)) << largest;
    double squares = 0, error_squares = 0, worst = 0;
    for (size_t i = 0; i < kGroup; ++i) {
      const double unit = std::ldexp(1.0, got.scales[0] - 127);
      ASSERT_EQ(got.codes[i], nearest(values[i] / unit)) << values[i] << " at scale " << int{got.scales[0]};
      const double error = std::fabs(number_of(format(), got.codes[i]) * unit - values[i]);
      squares += double{values[i]} * values[i];
      error_squares += error * error;
      worst = std::max(worst, error);
    }
    ASSERT_NEAR(got.error.squares / squares, 1.0, 1e-6);
    ASSERT_NEAR(got.error.error_squares, error_squares, 1e-6 * error_squares);
    ASSERT_NEAR(got.error.largest, worst, 1e-6 * worst);
    ASSERT_NEAR(got.error.relative(), std::sqrt(error_squares / squares), 1e-6);
  }
}

// Half way between two codes, and the nearest floats on either side of it.
TEST_P(MxGroups, TiesGoToTheEvenCode) {
  const float top = static_cast<float>(number_of(format(), num_magnitudes() - 1));  // fixes the scale at 1
  for (int code = 0; code + 1 < num_magnitudes(); ++code) {
    const auto half = static_cast<float>((number_of(format(), code) + number_of(format(), code + 1)) / 2);
    const float below = std::nextafter(half, 0.0f), above = std::nextafter(half, kInf);
    const Rounded got = rounded(format(), group_of({top, half, below, above, -half, -below, -above}));
    const int even = code % 2 == 0 ? code : code + 1;
    const auto minus = [&](int magnitude) { return magnitude == 0 ? 0 : magnitude | sign_bit(); };
    ASSERT_EQ(got.scales[0], 127);
    EXPECT_EQ((std::vector<int>(got.codes.begin() + 1, got.codes.begin() + 7)),
              (std::vector<int>{even, code, code + 1, minus(even), minus(code), minus(code + 1)}))
        << half;
  }
}

TEST_P(MxGroups, GroupsOfZerosHaveTheSmallestScaleAndNoSigns) {
  std::vector<float> zeros(kGroup, 0.0f);
  zeros[3] = -0.0f;
  const Rounded got = rounded(format(), zeros);
  EXPECT_EQ(got.scales[0], fp8() ? 0 : 1);
  EXPECT_EQ(got.codes, std::vector<int>(kGroup, 0));
  EXPECT_EQ(got.error.relative(), 0.0);
  // Numbers that are too small beside their neighbours become zero, not minus zero.
  EXPECT_EQ(rounded(format(), group_of({1.0f, -1e-9f, 1e-9f, -0.0f})).codes[1], 0);
  // The smallest numbers there are have no scale small enough.
  const Rounded tiny = rounded(format(), group_of({-std::numeric_limits<float>::denorm_min(), 0x1p-130f}));
  EXPECT_EQ(tiny.scales[0], 0);
  EXPECT_EQ(tiny.codes[0], 0);
}

TEST_P(MxGroups, NumbersThatNobodyCouldReadAreRefused) {
  const float largest = largest_of(format());
  EXPECT_EQ(largest, fp8() ? 57344.0f : std::nextafter(14.0f, 0.0f));
  const Rounded most = rounded(format(), group_of({-largest}));
  EXPECT_EQ(most.refused, -1);
  EXPECT_EQ(most.scales[0], largest_scale());
  for (const float bad : {std::nextafter(largest, kInf), kInf, -kInf, std::nanf(""), -std::nanf("")}) {
    std::vector<float> values(3 * kGroup, 1.0f);
    values[kGroup + 7] = bad;
    EXPECT_EQ(rounded(format(), values).refused, 1) << bad;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MxGroups, ::testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(MxGroups, TheLargestOfMxfp8IsNeverCutAndThatOfMxfp4Is) {
  EXPECT_EQ(rounded(MatrixFormat::kMxfp8, group_of({448.0f})).codes[0], 0x7e);
  const Rounded more = rounded(MatrixFormat::kMxfp8, group_of({std::nextafter(448.0f, kInf)}));
  EXPECT_EQ(more.scales[0], 128);
  EXPECT_EQ(more.codes[0], 0x76);  // 224 x 2
  const Rounded cut = rounded(MatrixFormat::kMxfp4, group_of({6.999f, -6.5f, 5.0f}));
  EXPECT_EQ(cut.scales[0], 127);
  EXPECT_EQ((std::vector<int>(cut.codes.begin(), cut.codes.begin() + 3)), (std::vector<int>{7, 15, 6}));
  EXPECT_EQ(rounded(MatrixFormat::kMxfp4, group_of({7.0f})).scales[0], 128);
  EXPECT_EQ(rounded(MatrixFormat::kMxfp4, group_of({3.5f})).scales[0], 127);
  EXPECT_EQ(rounded(MatrixFormat::kMxfp4, group_of({std::nextafter(3.5f, 0.0f)})).scales[0], 126);
}

TEST(MxGroups, ExpandingAgreesWithTheTypesOwnConversions) {
  for (int scale = 0; scale < 255; ++scale)
    for (int first = 0; first < 256; first += static_cast<int>(kGroup)) {
      uint8_t codes[kGroup];
      for (size_t i = 0; i < kGroup; ++i) codes[i] = static_cast<uint8_t>(first + static_cast<int>(i));
      const auto byte = static_cast<uint8_t>(scale);
      std::vector<float> values(kGroup);
      expand_groups(MatrixFormat::kMxfp8, codes, &byte, values);
      for (size_t i = 0; i < kGroup; ++i) {
        const float expected = e4m3_to_float(codes[i]) * e8m0_to_float(byte);
        if (std::isnan(expected))
          ASSERT_TRUE(std::isnan(values[i]));
        else
          ASSERT_EQ(values[i], expected);
      }
    }
}

}  // namespace
}  // namespace sparrow
