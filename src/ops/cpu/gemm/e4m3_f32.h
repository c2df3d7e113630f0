// SPDX-License-Identifier: Apache-2.0
// e4m3 codes with their scales as floats. Included only by *_avx2.cc and *_avx512.cc.
//
// A code's bits moved into a float's fields read 2^120 too small, subnormal codes included, and one product
// puts that and the scale right. NaN is the one code that this misreads, and some scales are beyond it: a
// Watch notices both, and whoever finds it alarmed looks closer, or starts again with exact_chunk().
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "msa/common/simd.h"
#include "ops/cpu/gemm/e4m3_tables.h"

namespace sparrow::ops::cpu {

template <typename V>
struct E4m3;

template <>
struct E4m3<msa::Avx2> {
  struct Watch {
    __m256i largest = _mm256_setzero_si256();  // magnitude in each byte
    uint32_t beyond = 0;
  };
  static bool saw_nan(const Watch& watch) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(watch.largest, _mm256_set1_epi8(0x7f))) != 0;
  }
  static bool saw_zeros(const Watch& watch) { return _mm256_testz_si256(watch.largest, watch.largest) != 0; }

  // use(v, x) for the vectors of 32 codes.
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, uint8_t scale, Watch& watch,
                                                          Use&& use) {
    static constexpr E4m3Factors kFactors;
    watch.beyond |= kFactors.of[scale].is_beyond;
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m256 factor = _mm256_set1_ps(kFactors.of[scale].factor);
    const __m256i zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half) {
      const __m256i bits = words(p + half * 16);
      use(2 * half, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, bits)), factor));
      use(2 * half + 1, _mm256_mul_ps(_mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, bits)), factor));
    }
  }

  static __attribute__((noinline)) void exact_chunk(const uint8_t* p, uint8_t scale, __m256* to) {
    for (int v = 0; v < 4; ++v) {
      const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + v * 8)));
      const __m256i magnitude = _mm256_and_si256(x, _mm256_set1_epi32(0x7f));
      const __m256i moved = _mm256_slli_epi32(magnitude, 20);
      const __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(moved), _mm256_set1_ps(0x1p120f));
      const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
      __m256i bits =
          _mm256_or_si256(_mm256_castps_si256(value), _mm256_slli_epi32(_mm256_sub_epi32(x, magnitude), 24));
      bits = _mm256_or_si256(bits, _mm256_and_si256(is_nan, _mm256_set1_epi32(0x7fc00000)));
      to[v] = rounded(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(e8m0_value(scale))));
    }
  }

 private:
  // 16 codes in the fields of bf16: four, the four after the next four, and in the upper lane those left out,
  // so that unpacking, which works in lanes, brings the vectors out in sequence.
  static __m256i words(const uint8_t* p) {
    constexpr char kNone = -128;
    const __m256i places =
        _mm256_setr_epi8(kNone, 0, kNone, 1, kNone, 2, kNone, 3, kNone, 8, kNone, 9, kNone, 10, kNone, 11,
                         kNone, 4, kNone, 5, kNone, 6, kNone, 7, kNone, 12, kNone, 13, kNone, 14, kNone, 15);
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_and_si256(_mm256_srai_epi16(_mm256_shuffle_epi8(both, places), 4),
                            _mm256_set1_epi16(static_cast<int16_t>(0x87f0)));
  }
  // To bf16, where subnormal numbers have fewer bits than codes.
  static __m256 rounded(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  }
};

#ifdef __AVX512F__
template <>
struct E4m3<msa::Avx512> {
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
    static constexpr E4m3Factors kFactors;
    watch.beyond |= kFactors.of[scale].is_beyond;
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m512 factor = _mm512_set1_ps(kFactors.of[scale].factor);
    for (int v = 0; v < 2; ++v) {
      const __m512i wide =
          _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + v * 16)));
      const __m512i bits =
          _mm512_and_si512(_mm512_slli_epi32(wide, 20), _mm512_set1_epi32(static_cast<int>(0x87f00000)));
      use(v, _mm512_mul_ps(_mm512_castsi512_ps(bits), factor));
    }
  }

  static __attribute__((noinline)) void exact_chunk(const uint8_t* p, uint8_t scale, __m512* to) {
    for (int v = 0; v < 2; ++v) {
      const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + v * 16)));
      const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi32(0x7f));
      const __m512i moved = _mm512_slli_epi32(magnitude, 20);
      const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(moved), _mm512_set1_ps(0x1p120f));
      __m512i bits =
          _mm512_or_si512(_mm512_castps_si512(value), _mm512_slli_epi32(_mm512_sub_epi32(x, magnitude), 24));
      bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)),
                                   _mm512_set1_epi32(0x7fc00000));
      to[v] = rounded(_mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(e8m0_value(scale))));
    }
  }

 private:
  static __m512 rounded(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  }
};
#endif

}  // namespace sparrow::ops::cpu
