// SPDX-License-Identifier: Apache-2.0
// e4m3 to bf16 and f16 in registers.
#pragma once

#include <cstdint>

namespace msa::sm90 {

// Four e4m3 numbers to bf16. The bits land in bf16's exponent and mantissa fields; the product with 2^120
// moves the exponent's bias, exactly, subnormals included. e4m3's NaN reads as 480: the cache's saturating
// store never makes one.
__device__ __forceinline__ void widen_e4m3(uint32_t x, uint32_t& low, uint32_t& high) {
  const auto widen = [](uint32_t bytes) {
    const uint32_t bits = ((bytes & 0x7f007f00u) >> 4) | (bytes & 0x80008000u);
    uint32_t scaled;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(scaled) : "r"(bits), "r"(0x7b807b80u));
    return scaled;
  };
  low = widen(__byte_perm(x, 0, 0x1404));
  high = widen(__byte_perm(x, 0, 0x3424));
}

// Four e4m3 numbers to f16, exactly.
__device__ __forceinline__ void widen_e4m3_f16(uint32_t x, uint32_t& low, uint32_t& high) {
  asm("{\n .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n"
      " cvt.rn.f16x2.e4m3x2 %0, l;\n cvt.rn.f16x2.e4m3x2 %1, h;\n}"
      : "=r"(low), "=r"(high)
      : "r"(x));
}

}  // namespace msa::sm90
