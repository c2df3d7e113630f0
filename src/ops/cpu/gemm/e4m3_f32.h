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
  using Factor = float;  // what a code's bits in a float's fields are multiplied by
  static constexpr int64_t kStep = 32;
  struct Watch {
    __m256i largest = _mm256_setzero_si256();  // magnitude in each byte
    uint32_t beyond = 0;
  };
  static bool saw_nan(const Watch& watch) {
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(watch.largest, _mm256_set1_epi8(0x7f))) != 0;
  }
  static bool saw_zeros(const Watch& watch) { return _mm256_testz_si256(watch.largest, watch.largest) != 0; }

  static Factor factor(uint8_t scale, Watch& watch) { return e4m3_factor(scale, watch.beyond); }
  // Of n scales.
  static void factors(const uint8_t* scales, int64_t n, Watch& watch, Factor* to) {
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(scales + i)));
      const __m256i within = _mm256_min_epi32(_mm256_max_epi32(x, _mm256_set1_epi32(kFirstE4m3Scale)),
                                              _mm256_set1_epi32(kLastE4m3Scale));
      watch.beyond |= ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi32(x, within)));
      const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(within, _mm256_set1_epi32(kE4m3Exponent)), 23);
      _mm256_storeu_ps(to + i, _mm256_castsi256_ps(bits));
    }
    for (; i < n; ++i) to[i] = factor(scales[i], watch);
  }

  // use(v, x) for the vectors of kStep codes.
  template <typename Use>
  static inline __attribute__((always_inline)) void step(const uint8_t* p, const Factor* factors,
                                                         Watch& watch, Use&& use) {
    chunk(p, *factors, watch, use);
  }
  // The same of 32 codes.
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, Factor with, Watch& watch,
                                                          Use&& use) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m256 factor = _mm256_set1_ps(with);
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

}  // namespace sparrow::ops::cpu

#ifdef __AVX512F__
#include "ops/cpu/gemm/e4m3_f32_avx512.h"
#endif
