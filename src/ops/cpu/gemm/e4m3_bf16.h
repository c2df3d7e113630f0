// SPDX-License-Identifier: Apache-2.0
// e4m3 codes with their scales as bf16, without a branch: for streams of weights that are used once. Included
// only by *_avx512bf16.cc.
#pragma once

#include "ops/cpu/gemm/dequantise_bf16.h"

namespace sparrow::ops::cpu {
namespace {

// Of each scale: what is added to a normal code's bits in bf16's fields (twice), and subnormal codes.
struct alignas(64) E4m3Bf16Table {
  uint32_t bias[256] = {}, is_beyond[256] = {};
  uint16_t subnormal[256][8] = {};

  constexpr E4m3Bf16Table() {
    for (int scale = 0; scale < 256; ++scale) {
      bias[scale] = kBias.of[scale];
      is_beyond[scale] = kBias.of[scale] == 0;
      for (int code = 1; code < 8 && is_beyond[scale] == 0; ++code)
        subnormal[scale][code] = static_cast<uint16_t>(CodeTables::to_bf16_bits(code) + (scale - 127) * 128);
    }
  }
};
constexpr E4m3Bf16Table kE4m3Bf16;

struct E4m3Bf16 {
  // As in e4m3_f32.h.
  struct Watch {
    __m256i largest = _mm256_setzero_si256();
    uint32_t beyond = 0;
  };
  static bool saw_nan(const Watch& watch) {
    return _mm256_cmpeq_epi8_mask(watch.largest, _mm256_set1_epi8(0x7f)) != 0;
  }
  static bool saw_zeros(const Watch& watch) { return _mm256_testz_si256(watch.largest, watch.largest) != 0; }

  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, uint8_t scale, Watch& watch,
                                                          Use&& use) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.beyond |= kE4m3Bf16.is_beyond[scale];
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m512i wide = _mm512_cvtepi8_epi16(codes);
    const __m512i moved =
        _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    const __m512i normal =
        _mm512_add_epi16(moved, _mm512_set1_epi32(static_cast<int>(kE4m3Bf16.bias[scale])));
    // No exponent: three bits of mantissa, looked up.
    const __m512i subnormals =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kE4m3Bf16.subnormal[scale])));
    const __mmask32 is_subnormal = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
    const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, is_subnormal, wide, subnormals);
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    use(0, _mm512_ternarylogic_epi64(magnitude, wide, sign, 0xf8));  // magnitude | (wide & sign)
  }
  static void exact_chunk(const uint8_t* p, uint8_t scale, __m512i* to) {
    *to = Dequantiser<MatrixFormat::kMxfp8>::chunk(p, scale);
  }
};

struct E2m1Bf16 {
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, uint8_t scale, Use&& use) {
    use(0, Dequantiser<MatrixFormat::kMxfp4>::chunk(p, scale));
  }
};

}  // namespace
}  // namespace sparrow::ops::cpu
