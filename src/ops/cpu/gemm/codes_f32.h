// SPDX-License-Identifier: Apache-2.0
// e4m3 and e2m1 codes with their scales as floats. Included only by *_avx2.cc and *_avx512.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "base/matrix_format.h"
#include "msa/common/simd.h"
#include "ops/cpu/gemm/e2m1_tables.h"

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

// 32 codes with their scale as floats, exactly.
template <typename V, MatrixFormat kFormat>
struct Codes;

// e4m3: where all are normal numbers, bits are moved and the scale is added to the exponent. Weights are
// quantised to fill the range, so zeros, subnormals and NaN are rare: one of them sends the 32 the slow way.
template <>
struct Codes<msa::Avx2, MatrixFormat::kMxfp8> {
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
    return rounded(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(scale)));
  }
  // To bf16, where subnormal numbers have fewer bits than codes.
  static __m256 rounded(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
};

template <>
struct Codes<msa::Avx2, MatrixFormat::kMxfp4> {
  static void chunk(const uint8_t* p, uint8_t scale, __m256* to) {
    static constexpr E2m1Bytes kTables;
    // Unpacking works in 128-bit lanes: this order of four codes each brings the vectors out in sequence.
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m128i ordered = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), order);
    const __m256i pairs = _mm256_cvtepu8_epi16(ordered);
    const __m256i codes =
        _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), _mm256_set1_epi8(15));
    const __m256i low = _mm256_shuffle_epi8(table(kTables.low[scale]), codes);
    const __m256i high = _mm256_shuffle_epi8(table(kTables.high[scale]), codes);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i a = _mm256_unpacklo_epi8(low, high), b = _mm256_unpackhi_epi8(low, high);
    to[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a));
    to[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a));
    to[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b));
    to[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b));
  }

 private:
  static __m256i table(const uint8_t* bytes) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
};

#ifdef __AVX512F__
template <>
struct Codes<msa::Avx512, MatrixFormat::kMxfp4> {
  static void chunk(const uint8_t* p, uint8_t scale, __m512* to) {
    static constexpr E2m1Words kTables;
    const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.of[scale]));
    const __m512 table = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    for (int v = 0; v < 2; ++v) {
      const __m512i bytes =
          _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + v * 8)));
      // Each byte's two codes into the low bits of the two halves of 64; the lookup ignores all others.
      const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
      to[v] = _mm512_permutexvar_ps(codes, table);
    }
  }
};

template <>
struct Codes<msa::Avx512, MatrixFormat::kMxfp8> {
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
    return rounded(_mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(scale)));
  }
  static __m512 rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
};
#endif

}  // namespace sparrow::ops::cpu
