// SPDX-License-Identifier: Apache-2.0
// e4m3 codes with their scales as bf16, for streams of weights that are used once. Included only by
// *_avx512bf16.cc.
#pragma once

#include "ops/cpu/gemm/dequantise_bf16.h"

namespace sparrow::ops::cpu {
namespace {

constexpr uint16_t subnormal(int code) {
  return static_cast<uint16_t>(CodeTables::to_bf16_bits(code) - (127 - ScaleBias::kZero) * 128);
}

struct E4m3Bf16 {
  // As in e4m3_f32.h.
  using Factor = uint32_t;  // what is added to a normal code's bits in bf16's fields, twice
  static constexpr int64_t kStep = 64;
  struct Watch {
    __m256i largest = _mm256_setzero_si256();
    uint32_t beyond = 0;
  };
  static bool saw_nan(const Watch& watch) {
    return _mm256_cmpeq_epi8_mask(watch.largest, _mm256_set1_epi8(0x7f)) != 0;
  }
  static bool saw_zeros(const Watch& watch) { return _mm256_testz_si256(watch.largest, watch.largest) != 0; }

  static Factor factor(uint8_t scale, Watch& watch) {
    watch.beyond |= kBias.of[scale] == 0;
    return kBias.of[scale];
  }
  // Of n scales.
  static void factors(const uint8_t* scales, int64_t n, Watch& watch, Factor* to) {
    for (int64_t i = 0; i < n; i += 16) {
      const __mmask16 there = n - i < 16 ? static_cast<__mmask16>((1 << (n - i)) - 1) : 0xffff;
      const __m512i x = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, scales + i));
      const __m512i above = _mm512_sub_epi32(x, _mm512_set1_epi32(ScaleBias::kFirst));
      watch.beyond |=
          _mm512_mask_cmpgt_epu32_mask(there, above, _mm512_set1_epi32(ScaleBias::kLast - ScaleBias::kFirst));
      const __m512i bias = _mm512_mullo_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(ScaleBias::kZero)),
                                              _mm512_set1_epi32(ScaleBias::kUnit));
      _mm512_mask_storeu_epi32(to + i, there, bias);
    }
  }

  // Few codes are zeros, subnormals or NaN: one of them sends the step through chunk().
  template <typename Use>
  static inline __attribute__((always_inline)) void step(const uint8_t* p, const Factor* factors,
                                                         Watch& watch, Use&& use) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i above = _mm512_sub_epi8(_mm512_add_epi8(codes, codes), _mm512_set1_epi8(2 * kFirstNormal));
    const __mmask64 special =
        _mm512_cmpge_epu8_mask(above, _mm512_set1_epi8(static_cast<char>(2 * (kNan - kFirstNormal))));
    if (special == 0) [[likely]] {
      use(0, scaled(moved(widened(p)), factors[0]));
      use(1, scaled(moved(widened(p + 32)), factors[1]));
    } else {
      chunk(
          p, factors[0], watch, [&](int, __m512i x) __attribute__((always_inline)) { use(0, x); });
      chunk(
          p + 32, factors[1], watch, [&](int, __m512i x) __attribute__((always_inline)) { use(1, x); });
    }
  }
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, Factor factor, Watch& watch,
                                                          Use&& use) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m512i wide = widened(p);
    // No exponent: three bits of mantissa, looked up as numbers with one, for the same factor. Zero has none.
    const __m512i subnormals =
        _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(kSubnormals)));
    const __mmask32 is_subnormal = _mm512_testn_epi16_mask(wide, _mm512_set1_epi16(0x78));
    const __m512i magnitude = _mm512_mask_permutexvar_epi16(
        _mm512_and_si512(moved(wide), _mm512_set1_epi16(0x7fff)), is_subnormal, wide, subnormals);
    const __mmask32 is_there = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x7f));
    const __m512i product =
        _mm512_maskz_add_epi16(is_there, magnitude, _mm512_set1_epi32(static_cast<int>(factor)));
    const __m512i sign = _mm512_set1_epi16(static_cast<int16_t>(0x8000));
    use(0, _mm512_ternarylogic_epi64(product, wide, sign, 0xf8));  // product | (wide & sign)
  }
  static void exact_chunk(const uint8_t* p, uint8_t scale, __m512i* to) {
    *to = Dequantiser<MatrixFormat::kMxfp8>::chunk(p, scale);
  }

 private:
  static constexpr int kFirstNormal = 8, kNan = 0x7f;
  // Of codes below 8, less the bias that factors have.
  alignas(16) static constexpr uint16_t kSubnormals[8] = {
      0, subnormal(1), subnormal(2), subnormal(3), subnormal(4), subnormal(5), subnormal(6), subnormal(7)};

  static __m512i widened(const uint8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  // Sign and magnitude to bf16's fields.
  static __m512i moved(__m512i wide) {
    return _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
  }
  // Halves of normal numbers carry nothing over.
  static __m512i scaled(__m512i moved, Factor factor) {
    return _mm512_add_epi32(moved, _mm512_set1_epi32(static_cast<int>(factor)));
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
