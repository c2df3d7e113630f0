// SPDX-License-Identifier: Apache-2.0
// Scales of e4m3 codes as floats. static: an inline function shared by all files could be linked from one
// built for a stronger instruction set.
#pragma once

#include <cstdint>

namespace sparrow::ops::cpu {

// What to multiply by for each scale: 2^120 times it.
struct E4m3Factors {
  struct {
    float factor;
    uint32_t is_beyond;  // that is no float, or (below 3) a code's number may be one that bf16 would round
  } of[256] = {};

  constexpr E4m3Factors() {
    double factor = 0x1p-7;
    for (int scale = 0; scale < 256; ++scale, factor *= 2)
      of[scale] = {scale <= 134 ? static_cast<float>(factor) : 0.0f, scale < 3 || scale > 134};
  }
};

// 2^(scale - 127): the scale in the exponent field; 0 is the one subnormal, 255 is NaN.
static inline float e8m0_value(uint8_t scale) {
  const uint32_t bits = scale == 0 ? 0x400000u : scale == 255 ? 0x7fc00000u : uint32_t{scale} << 23;
  return __builtin_bit_cast(float, bits);
}

}  // namespace sparrow::ops::cpu
