// SPDX-License-Identifier: Apache-2.0
// The vector types of AVX-512. Included by simd.h alone.
#pragma once

#include "msa/common/simd_avx2.h"

namespace msa {

#ifdef __AVX512F__
// `Set` only tells apart what different files emit.
template <typename Set>
struct Avx512Vector {
  using F = __m512;
  using I = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kPerElement = 1;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const uint16_t* bf16) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static __m256i to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
  }
  static void store(uint16_t* bf16, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bf16), to_bf16(x));
  }
  static I load_words(const void* p) { return _mm512_loadu_si512(p); }
  static F even(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
  static F odd(I x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-0x10000))); }
  static F as_floats(I x) { return _mm512_castsi512_ps(x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add_products(F a, F b, F c) { return fma(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale_by_power(F x, F n) { return _mm512_scalef_ps(x, n); }
  static F keep_where_greater(F x, F a, F b) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
  }
  static float sum(F x) {
    const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    return Avx2::sum(y);
  }
  static float largest(F x) {
    return Avx2::largest(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
  }
};
struct Avx512 : Avx512Vector<Avx512> {};
#endif  // __AVX512F__

#ifdef __AVX512BF16__
// Products of pairs of bf16. The instruction flushes subnormals.
struct Avx512Bf16 : Avx512Vector<Avx512Bf16> {
  static constexpr int kPerElement = 2;

  using Avx512Vector::store;
  static void store(uint16_t* bf16, F x) {
    const __m256bh rounded = _mm512_cvtneps_pbh(x);
    __builtin_memcpy(bf16, &rounded, sizeof(rounded));
  }
  // Two rows of bf16, interleaved.
  static F pair(const uint16_t* even, const uint16_t* odd) {
    const auto widen = [](const uint16_t* p) {
      return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    };
    return _mm512_castsi512_ps(_mm512_or_si512(widen(even), _mm512_slli_epi32(widen(odd), 16)));
  }
  static F add_products(F a, F b, F c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};
#endif  // __AVX512BF16__

}  // namespace msa
