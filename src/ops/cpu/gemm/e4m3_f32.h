// SPDX-License-Identifier: Apache-2.0
// e4m3 codes with their scales as floats. Included only by *_avx2.cc and *_avx512.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "msa/common/simd.h"

namespace sparrow::ops::cpu {

// What a scale adds to an e4m3 code whose magnitude was moved to bf16's place: both exponent biases and the
// scale. 0 where the sum may leave the range of normal numbers (e4m3 exponents span 2^-9 to 2^8).
static constexpr uint16_t e4m3_bias(uint8_t scale) {
  return scale < 10 || scale > 246 ? uint16_t{0} : static_cast<uint16_t>((scale - 7) * 128);
}

// 2^(scale - 127): the scale in the exponent field; 0 is the one subnormal, 255 is NaN.
static inline float e8m0_value(uint8_t scale) {
  const uint32_t bits = scale == 0 ? 0x400000u : scale == 255 ? 0x7fc00000u : uint32_t{scale} << 23;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// 32 e4m3 codes with their scale as floats, exactly. Where all are normal numbers, bits are moved and the
// scale is added to the exponent. Weights are quantised to fill the range, so zeros, subnormals and NaN are
// rare: one of them sends the 32 the slow way.
template <typename V>
struct E4m3;

template <>
struct E4m3<msa::Avx2> {
  static void chunk(const uint8_t* p, uint8_t scale, __m256* to) {
    const uint16_t bias = e4m3_bias(scale);
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (bias == 0 || any_special(x)) {
      for (int v = 0; v < 4; ++v) to[v] = slow(p + v * 8, e8m0_value(scale));
      return;
    }
    // Unpacking works in 128-bit lanes: this order of four codes each brings the vectors out in sequence.
    const __m256i ordered = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    const __m256i zero = _mm256_setzero_si256();
    const __m256i a = to_bf16(_mm256_unpacklo_epi8(zero, ordered), bias);
    const __m256i b = to_bf16(_mm256_unpackhi_epi8(zero, ordered), bias);
    to[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a));
    to[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a));
    to[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b));
    to[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b));
  }

 private:
  // A magnitude outside [8, 0x7e].
  static bool any_special(__m256i x) {
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    const __m256i above = _mm256_sub_epi8(magnitude, _mm256_set1_epi8(8));
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_max_epu8(above, _mm256_set1_epi8(0x77)), above)) !=
           0;
  }
  // Codes in the high bytes of 16-bit lanes: keep the sign, move the magnitude to bf16's place, add the bias.
  static __m256i to_bf16(__m256i high, uint16_t bias) {
    const __m256i moved =
        _mm256_and_si256(_mm256_srai_epi16(high, 4), _mm256_set1_epi16(static_cast<int16_t>(0x87f0)));
    return _mm256_add_epi16(moved, _mm256_set1_epi16(static_cast<int16_t>(bias)));
  }
  static __attribute__((noinline)) __m256 slow(const uint8_t* p, float scale) {
    const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
    const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    __m256i bits = _mm256_blendv_epi8(normal, _mm256_castps_si256(subnormal), is_subnormal);
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000)));
    bits = _mm256_or_si256(bits, _mm256_slli_epi32(_mm256_sub_epi32(x, magnitude), 24));
    return _mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(scale));
  }
};

#ifdef __AVX512F__
template <>
struct E4m3<msa::Avx512> {
  static void chunk(const uint8_t* p, uint8_t scale, __m512* to) {
    const uint16_t bias = e4m3_bias(scale);
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if (bias == 0 || any_special(x)) {
      for (int v = 0; v < 2; ++v) to[v] = slow(p + v * 16, e8m0_value(scale));
      return;
    }
    const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(x), 8);
    const __m512i moved =
        _mm512_and_si512(_mm512_srai_epi16(high, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    const __m512i bits = _mm512_add_epi16(moved, _mm512_set1_epi16(static_cast<int16_t>(bias)));
    to[0] = widen(_mm512_castsi512_si256(bits));
    to[1] = widen(_mm512_extracti64x4_epi64(bits, 1));
  }

 private:
  static bool any_special(__m256i x) {
    const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi8(0x7f));
    return _mm256_cmpge_epu8_mask(_mm256_sub_epi8(magnitude, _mm256_set1_epi8(8)), _mm256_set1_epi8(0x77)) !=
           0;
  }
  static __m512 widen(__m256i bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16));
  }
  static __attribute__((noinline)) __m512 slow(const uint8_t* p, float scale) {
    const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
    __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
    const __m512 subnormal = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8)),
                                 _mm512_castps_si512(subnormal));
    bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)),
                                 _mm512_set1_epi32(0x7fc00000));
    bits = _mm512_or_si512(bits, _mm512_slli_epi32(_mm512_sub_epi32(x, magnitude), 24));
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale));
  }
};
#endif

}  // namespace sparrow::ops::cpu
