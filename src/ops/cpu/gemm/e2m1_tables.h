// SPDX-License-Identifier: Apache-2.0
// E2M1 codes with their scales as bf16: sixteen numbers for each scale, few enough to be looked up by
// shuffles. They are exact for every scale; no code needs another way.
#pragma once

#include <cstdint>

namespace sparrow::ops::cpu {

static constexpr uint16_t e2m1_bf16(int code, int scale) {
  const int magnitude = code & 7;
  const auto sign = static_cast<uint16_t>((code & 8) << 12);
  if (scale == 255) return 0x7fc0;
  if (magnitude == 0) return sign;
  // 0.5 is the one subnormal; all others have their exponent above the last bit.
  const int exponent = scale + (magnitude == 1 ? -1 : magnitude / 2 - 1);
  if (exponent >= 255) return sign | 0x7f80;
  const int mantissa = magnitude == 1 ? 0 : (magnitude & 1) << 6;
  return static_cast<uint16_t>(
      sign | (exponent > 0 ? exponent << 7 | mantissa : (0x80 | mantissa) >> (1 - exponent)));
}

// As words, for lookups of 16 bits.
struct alignas(64) E2m1Words {
  uint16_t of[256][16] = {};

  constexpr E2m1Words() {
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 16; ++code) of[scale][code] = e2m1_bf16(code, scale);
  }
};

// As low and high bytes apart, for lookups of 8.
struct alignas(64) E2m1Bytes {
  uint8_t low[256][16] = {}, high[256][16] = {};

  constexpr E2m1Bytes() {
    for (int scale = 0; scale < 256; ++scale)
      for (int code = 0; code < 16; ++code) {
        low[scale][code] = static_cast<uint8_t>(e2m1_bf16(code, scale));
        high[scale][code] = static_cast<uint8_t>(e2m1_bf16(code, scale) >> 8);
      }
  }
};

}  // namespace sparrow::ops::cpu
