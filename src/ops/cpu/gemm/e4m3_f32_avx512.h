// SPDX-License-Identifier: Apache-2.0
// e4m3_f32.h for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "msa/common/simd.h"
#include "ops/cpu/gemm/e4m3_tables.h"

namespace sparrow::ops::cpu {

template <typename V>
struct E4m3;

template <>
struct E4m3<msa::Avx512> {
  using Factor = float;
  static constexpr int64_t kStep = 32;
  struct Watch {
    __m256i largest = _mm256_setzero_si256();
    uint32_t beyond = 0;
  };
  static bool saw_nan(const Watch& watch) {
    return _mm256_cmpeq_epi8_mask(watch.largest, _mm256_set1_epi8(0x7f)) != 0;
  }
  static bool saw_zeros(const Watch& watch) { return _mm256_testz_si256(watch.largest, watch.largest) != 0; }

  static Factor factor(uint8_t scale, Watch& watch) { return e4m3_factor(scale, watch.beyond); }
  static void factors(const uint8_t* scales, int64_t n, Watch& watch, Factor* to) {
    for (int64_t i = 0; i < n; i += 16) {
      const __mmask16 there = n - i < 16 ? static_cast<__mmask16>((1 << (n - i)) - 1) : 0xffff;
      const __m512i x = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, scales + i));
      const __m512i within = _mm512_min_epi32(_mm512_max_epi32(x, _mm512_set1_epi32(kFirstE4m3Scale)),
                                              _mm512_set1_epi32(kLastE4m3Scale));
      watch.beyond |= _mm512_mask_cmpneq_epi32_mask(there, x, within);
      const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(within, _mm512_set1_epi32(kE4m3Exponent)), 23);
      _mm512_mask_storeu_ps(to + i, there, _mm512_castsi512_ps(bits));
    }
  }

  template <typename Use>
  static inline __attribute__((always_inline)) void step(const uint8_t* p, const Factor* factors,
                                                         Watch& watch, Use&& use) {
    chunk(p, *factors, watch, use);
  }
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, Factor with, Watch& watch,
                                                          Use&& use) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    watch.largest = _mm256_max_epu8(watch.largest, _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)));
    const __m512 factor = _mm512_set1_ps(with);
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

}  // namespace sparrow::ops::cpu
