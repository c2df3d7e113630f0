// SPDX-License-Identifier: Apache-2.0
// The vector type of AVX2. Included by simd.h alone.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace msa {

#ifdef __AVX2__
struct Avx2 {
  using F = __m256;
  using I = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kPerElement = 1;  // numbers of an element of a product: see panels.h

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const uint16_t* bf16) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  // To nearest, ties to even. Inputs must not be NaN payloads that matter: NaN stays some NaN.
  static void store(uint16_t* bf16, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bf16), packed);
  }
  static I load_words(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  // The even and the odd ones of packed bf16, widened.
  static F even(I x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
  static F odd(I x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(-0x10000))); }
  static F as_floats(I x) { return _mm256_castsi256_ps(x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F add_products(F a, F b, F c) { return fma(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // x * 2^n for integral n in [-126, 127].
  static F scale_by_power(F x, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  // x where a > b, else 0.
  static F keep_where_greater(F x, F a, F b) { return _mm256_and_ps(x, _mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
  static float sum(F x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
  }
  // No lane may be NaN.
  static float largest(F x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
  }
};
#endif  // __AVX2__

}  // namespace msa
