// SPDX-License-Identifier: Apache-2.0
// e2m1 codes with their scales as floats. Included only by *_avx2.cc and *_avx512.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "msa/common/simd.h"
#include "ops/cpu/gemm/e2m1_tables.h"

namespace sparrow::ops::cpu {

// use(v, x) for the vectors of 32 codes of one scale.
template <typename V>
struct E2m1;

template <>
struct E2m1<msa::Avx2> {
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, uint8_t scale, Use&& use) {
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
    use(0, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, a)));
    use(1, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, a)));
    use(2, _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, b)));
    use(3, _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, b)));
  }

 private:
  static __m256i table(const uint8_t* bytes) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
};

#ifdef __AVX512F__
template <>
struct E2m1<msa::Avx512> {
  template <typename Use>
  static inline __attribute__((always_inline)) void chunk(const uint8_t* p, uint8_t scale, Use&& use) {
    static constexpr E2m1Words kTables;
    const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.of[scale]));
    const __m512 table = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
    for (int v = 0; v < 2; ++v) {
      const __m512i bytes =
          _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + v * 8)));
      // Each byte's two codes into the low bits of the two halves of 64; the lookup ignores all others.
      const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
      use(v, _mm512_permutexvar_ps(codes, table));
    }
  }
};
#endif

}  // namespace sparrow::ops::cpu
