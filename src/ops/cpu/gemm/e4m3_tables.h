// SPDX-License-Identifier: Apache-2.0
// Scales of e4m3 codes as floats. static: an inline function shared by all files could be linked from one
// built for a stronger instruction set.
#pragma once

#include <cstdint>

namespace sparrow::ops::cpu {

// Scales of which every code is a float, 2^120 of it too, and (from 3 on) a number that bf16 need not round.
static constexpr int kFirstE4m3Scale = 3, kLastE4m3Scale = 134;
// 2^120 times a scale is a float whose exponent field is the scale's byte and this.
static constexpr int kE4m3Exponent = 120;

// 2^120 times the scale, or times the nearest one that is not beyond these.
static inline float e4m3_factor(int scale, uint32_t& beyond) {
  const int within = scale < kFirstE4m3Scale  ? kFirstE4m3Scale
                     : scale > kLastE4m3Scale ? kLastE4m3Scale
                                              : scale;
  beyond |= within != scale;
  return __builtin_bit_cast(float, static_cast<uint32_t>(within + kE4m3Exponent) << 23);
}

// 2^(scale - 127): the scale in the exponent field; 0 is the one subnormal, 255 is NaN.
static inline float e8m0_value(uint8_t scale) {
  const uint32_t bits = scale == 0 ? 0x400000u : scale == 255 ? 0x7fc00000u : uint32_t{scale} << 23;
  return __builtin_bit_cast(float, bits);
}

}  // namespace sparrow::ops::cpu
