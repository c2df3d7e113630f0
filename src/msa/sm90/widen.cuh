// SPDX-License-Identifier: Apache-2.0
// e4m3 to bf16 in registers.
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

}  // namespace msa::sm90
