// SPDX-License-Identifier: Apache-2.0
// From numbers to e4m3 codes, in the order of fold.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/mx/cell.h"
#include "ops/cuda/mx/fold.h"

namespace sparrow::ops::cuda {

inline constexpr float kLargestE4m3 = 448;

// The number of a folded row's scale byte, as a cell has it.
__device__ __forceinline__ float folded_number(uint32_t byte) {
  constexpr uint32_t kBias = cell_scale(MatrixFormat::kMxfp8, 0);
  return __uint_as_float((byte - kBias) << 23);
}

// e4m3_quads() in ten instructions, written out because the compiler takes picks apart. Bytes of both words
// side by side: the upper ones of a code's half in one register, the lower ones in another.
__device__ __forceinline__ void e4m3_operands(uint32_t low, uint32_t high, uint32_t& first,
                                              uint32_t& second) {
  const auto pick = [](uint32_t a, uint32_t b, uint32_t of_a) {
    uint32_t picked;
    asm("lop3.b32 %0, %1, %2, %3, 0xE4;" : "=r"(picked) : "r"(a), "r"(b), "r"(of_a));
    return picked;
  };
  const uint32_t upper = __byte_perm(low, high, 0x3715), lower = __byte_perm(low, high, 0x2604);
  const uint32_t upper_up4 = upper << 4;
  first = pick(pick(upper, upper_up4, 0x80808080u), lower >> 4, 0xF0F0F0F0u);
  second = pick(upper_up4 ^ lower >> 12, upper ^ lower, 0x80808080u);
}

// The numbers of a word of two bf16.
__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ float largest_of(const uint4& eight) {
  float m = 0;
#pragma unroll
  for (const uint32_t pair : {eight.x, eight.y, eight.z, eight.w})
    m = fmaxf(m, fmaxf(fabsf(low_of(pair)), fabsf(high_of(pair))));
  return m;
}

// What a row's numbers are multiplied with.
__device__ __forceinline__ float e4m3_factor(float largest) {
  return largest > 0 ? kLargestE4m3 / largest : 0;
}

// Two numbers as e4m3, the largest where they are larger.
__device__ __forceinline__ uint32_t e4m3_pair(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

// Lane l of a warp has eight columns, those 8 (l % 4) to + 7 of 32: returns bytes e4m3_eight_at() to + 7 of
// the 32 codes. For the whole warp.
__device__ __forceinline__ uint2 e4m3_eight(const uint4& columns, float factor) {
  const auto pairs = [&](uint32_t first, uint32_t second) {
    return e4m3_pair(low_of(first) * factor, high_of(first) * factor) |
           e4m3_pair(low_of(second) * factor, high_of(second) * factor) << 16;
  };
  const uint32_t front = pairs(columns.x, columns.y), back = pairs(columns.z, columns.w);
  // Columns 16 apart alternate: who has the lower ones keeps the front halves of both.
  const bool upper = threadIdx.x & 2;
  const uint32_t got = __shfl_xor_sync(~0u, upper ? front : back, 2);
  const uint32_t low = upper ? got : front, high = upper ? back : got;
  return {__byte_perm(low, high, 0x1504), __byte_perm(low, high, 0x3726)};
}
__device__ __forceinline__ int e4m3_eight_at() {
  return static_cast<int>(threadIdx.x) % 2 * 16 + static_cast<int>(threadIdx.x) / 2 % 2 * 8;
}
static_assert(e4m3_place(16) == 0 && e4m3_place(0) == 1 && e4m3_place(17) == 2 && e4m3_place(1) == 3 &&
              e4m3_place(18) == 4 && e4m3_place(20) == 8 && e4m3_place(24) == 16 && e4m3_place(15) == 31);

}  // namespace sparrow::ops::cuda
