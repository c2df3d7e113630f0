// SPDX-License-Identifier: Apache-2.0
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace sparrow {
namespace {

float bits_to_float(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(BFloat16, EveryValueSurvivesTheWayToFloatAndBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 x{static_cast<uint16_t>(bits)};
    const float f = to_float(x);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(to_float(to_bf16(f))));
    } else {
      EXPECT_EQ(to_bf16(f).bits, bits);
    }
  }
}

TEST(BFloat16, RoundsToNearestWithTiesToEven) {
  EXPECT_EQ(to_bf16(bits_to_float(0x3f808000)).bits, 0x3f80);  // half way, even below
  EXPECT_EQ(to_bf16(bits_to_float(0x3f818000)).bits, 0x3f82);  // half way, even above
  EXPECT_EQ(to_bf16(bits_to_float(0x3f808001)).bits, 0x3f81);
  EXPECT_EQ(to_bf16(bits_to_float(0x3f807fff)).bits, 0x3f80);
  EXPECT_EQ(to_bf16(bits_to_float(0xbf818000)).bits, 0xbf82);
}

TEST(BFloat16, TheLargestFloatsRoundToInfinity) {
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::max()).bits, 0xff80);
  EXPECT_EQ(to_bf16(bits_to_float(0x7f7f7fff)).bits, 0x7f7f);
}

TEST(BFloat16, NanWithLowBitsOnlyStaysNan) {
  EXPECT_TRUE(std::isnan(to_float(to_bf16(bits_to_float(0x7f800001)))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(bits_to_float(0xffffffff)))));
}

// The definition of the format, written independently of the bit tricks.
float e4m3_by_definition(int code) {
  const int exponent = (code >> 3) & 15, mantissa = code & 7;
  const float sign = code >= 128 ? -1.0f : 1.0f;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(1.0f + static_cast<float>(mantissa) / 8.0f, exponent - 7);
}

TEST(E4M3, EveryCodeHasTheValueOfItsDefinition) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(e4m3_by_definition(code))) << code;
    }
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
}

TEST(E4M3, TimesAScaleIsExactInBfloat16) {
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;
    for (const uint8_t scale : {100, 119, 127, 135}) {
      const float value = e4m3_to_float(static_cast<uint8_t>(code)) * e8m0_to_float(scale);
      EXPECT_EQ(to_float(to_bf16(value)), value);
    }
  }
}

TEST(E8M0, IsAPowerOfTwoWithBias127) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(128), 2.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_EQ(e8m0_to_float(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(e8m0_to_float(kE8M0NaN)));
}

TEST(DType, SizesAndNamesAreThoseOfSafetensors) {
  EXPECT_EQ(size_of(DType::kF32), 4u);
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kF8E4M3), 1u);
  EXPECT_EQ(size_of(DType::kU8), 1u);
  EXPECT_EQ(size_of(DType::kI32), 4u);
  EXPECT_EQ(name_of(DType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(name_of(DType::kBF16), "BF16");
}

}  // namespace
}  // namespace sparrow
