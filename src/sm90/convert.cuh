// SPDX-License-Identifier: Apache-2.0
// e4m3 to bf16 and f16, bf16 to f16, in registers.
#pragma once

#include <cstdint>

namespace hopper {

// Four e4m3 numbers to bf16. Each byte becomes 16 bits with its sign repeated; shifted by 4, its exponent and
// mantissa lie in bf16's fields, and the mask keeps one of the signs. The product with 2^120 moves the
// exponent's bias, exactly, subnormals included. e4m3's NaN reads as 480: the cache's saturating store never
// makes one.
__device__ __forceinline__ void widen_e4m3(uint32_t x, uint32_t& low, uint32_t& high) {
  const auto widen = [](uint32_t pair) {
    const uint32_t bits = (pair << 4) & 0x87f087f0u;
    uint32_t scaled;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(scaled) : "r"(bits), "r"(0x7b807b80u));
    return scaled;
  };
  uint32_t pair[2];
  asm("prmt.b32 %0, %1, 0, 0x9180;" : "=r"(pair[0]) : "r"(x));
  asm("prmt.b32 %0, %1, 0, 0xb3a2;" : "=r"(pair[1]) : "r"(x));
  low = widen(pair[0]), high = widen(pair[1]);
}

// Four e4m3 numbers to f16, exactly.
__device__ __forceinline__ void widen_e4m3_f16(uint32_t x, uint32_t& low, uint32_t& high) {
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n"
      " cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(x));
}

// Two bf16 numbers to f16, to its largest number where they are larger.
__device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair) {
  uint32_t result;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
      : "=r"(result)
      : "f"(__uint_as_float(pair & 0xffff0000u)), "f"(__uint_as_float(pair << 16)));
  return result;
}

}  // namespace hopper
