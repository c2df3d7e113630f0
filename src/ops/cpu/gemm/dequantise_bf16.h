// SPDX-License-Identifier: Apache-2.0
// e4m3 and e2m1 weights with their scales to bf16, exactly. Included only by *_avx512bf16.cc and *_amx.cc.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/matrix_format.h"
#include "ops/cpu/gemm/e2m1_tables.h"

namespace sparrow::ops::cpu {
namespace {

// For each scale, what to add to a code moved into bf16's fields, twice: both exponent biases and the scale.
// 0 where the sum may leave the range of normal numbers (e4m3 exponents span 2^-9 to 2^8).
struct ScaleBias {
  static constexpr uint32_t kFirst = 10, kLast = 246, kZero = 7, kUnit = 128 * 0x10001;
  uint32_t of[256] = {};

  constexpr ScaleBias() {
    for (uint32_t scale = kFirst; scale <= kLast; ++scale) of[scale] = (scale - kZero) * kUnit;
  }
};
constexpr ScaleBias kBias;

// The bf16 of every positive e4m3 code, low and high bytes apart.
struct alignas(64) CodeTables {
  uint8_t low[128] = {}, high[128] = {};

  constexpr CodeTables() {
    for (int code = 0; code < 128; ++code) {
      const uint16_t bits = to_bf16_bits(code);
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
  static constexpr uint16_t to_bf16_bits(int code) {
    if (code == 0) return 0;
    if (code == 0x7f) return 0x7fc0;
    if (code >= 8) return static_cast<uint16_t>((code << 4) + (120 << 7));
    int exponent = 120 + 1, mantissa = code;  // subnormal: shift the leading one into place
    while (mantissa < 8) mantissa <<= 1, --exponent;
    return static_cast<uint16_t>((exponent << 7) + ((mantissa & 7) << 4));
  }
};
constexpr CodeTables kCodes;

template <MatrixFormat kFormat>
struct Dequantiser;

// Where all codes of a vector are normal numbers, bits are moved and the scale is added to the exponent.
// Weights are quantised to fill the range, so zeros, subnormals and NaN are rare: one of them sends the
// vector through byte tables.
template <>
struct Dequantiser<MatrixFormat::kMxfp8> {
  // 64 elements of one row, two scales: the rows of two neighbouring tiles.
  static void row(const uint8_t* from, const uint8_t* scales, char* to0, char* to1) {
    const __m512i x = _mm512_loadu_si512(from);
    const uint32_t bias0 = kBias.of[scales[0]], bias1 = kBias.of[scales[1]];
    if (bias0 == 0 || bias1 == 0 || any_special(x)) return pair(x, scales[0], scales[1], to0, to1);
    const __m512i ordered = unpack_order(x), zero = _mm512_setzero_si512();
    _mm512_store_si512(to0, normal(_mm512_unpacklo_epi8(zero, ordered), bias0));
    _mm512_store_si512(to1, normal(_mm512_unpackhi_epi8(zero, ordered), bias1));
  }
  // 32 elements, one scale.
  static __m512i chunk(const uint8_t* from, uint8_t scale) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m512i high = _mm512_slli_epi16(_mm512_cvtepu8_epi16(x), 8);
    const uint32_t bias = kBias.of[scale];
    if (bias != 0 && !any_special(_mm512_inserti64x4(_mm512_castsi256_si512(x), x, 1)))
      return normal(high, bias);
    return special_chunk(x, scale);
  }

 private:
  // Zero, subnormal or NaN: a magnitude outside [8, 0x7e].
  static bool any_special(__m512i x) {
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi8(0x7f));
    return _mm512_cmpge_epu8_mask(_mm512_sub_epi8(magnitude, _mm512_set1_epi8(8)), _mm512_set1_epi8(0x77)) !=
           0;
  }
  // Unpacking works in 128-bit lanes: order the quarters so that the halves come out in sequence.
  static __m512i unpack_order(__m512i x) {
    return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), x);
  }
  // Codes in the high bytes of 16-bit lanes: keep the sign, move the magnitude to bf16's place, add the bias.
  static __m512i normal(__m512i high, uint32_t bias) {
    const __m512i moved =
        _mm512_and_si512(_mm512_srai_epi16(high, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    return _mm512_add_epi16(moved, _mm512_set1_epi32(static_cast<int>(bias)));
  }

  static __attribute__((noinline)) __m512i special_chunk(__m256i x, uint8_t scale) {
    alignas(64) char both[2][64];
    pair(_mm512_castsi256_si512(x), scale, 127, both[0], both[1]);
    return _mm512_load_si512(both[0]);
  }
  static void pair(__m512i x, uint8_t scale0, uint8_t scale1, char* to0, char* to1) {
    x = unpack_order(x);
    const __m512i sign_bit = _mm512_set1_epi8(static_cast<char>(0x80));
    const __m512i low = lookup(kCodes.low, x), high = lookup(kCodes.high, x);
    const __m512i signed_high = _mm512_ternarylogic_epi64(high, x, sign_bit, 0xf8);  // high | (x & sign_bit)
    _mm512_store_si512(to0, scaled(_mm512_unpacklo_epi8(low, signed_high), scale0));
    _mm512_store_si512(to1, scaled(_mm512_unpackhi_epi8(low, signed_high), scale1));
  }

  static __m512i lookup(const uint8_t* table, __m512i codes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes, _mm512_load_si512(table + 64));
  }
  static __m512i scaled(__m512i x, uint8_t scale) {
    if (kBias.of[scale] == 0) return scaled_slowly(x, scale);
    const __m512i magnitude = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff));
    // Neither zero nor NaN: 1 <= magnitude < 0x7fc0.
    const __mmask32 finite = _mm512_cmplt_epu16_mask(_mm512_sub_epi16(magnitude, _mm512_set1_epi16(1)),
                                                     _mm512_set1_epi16(0x7fc0 - 1));
    return _mm512_mask_add_epi16(x, finite, x, _mm512_set1_epi16(static_cast<int16_t>((scale - 127) * 128)));
  }

  static __attribute__((noinline)) __m512i scaled_slowly(__m512i x, uint8_t scale) {
    const uint32_t bits = scale == 0 ? 0x400000u : scale == 255 ? 0x7fc00000u : uint32_t{scale} << 23;
    const __m512 factor = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(bits)));
    const __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    const __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(x, 1));
    const __m512 a = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(low, 16)), factor);
    const __m512 b = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(high, 16)), factor);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  }
};

template <>
struct Dequantiser<MatrixFormat::kMxfp4> {
  static void row(const uint8_t* from, const uint8_t* scales, char* to0, char* to1) {
    _mm512_store_si512(to0, chunk(from, scales[0]));
    _mm512_store_si512(to1, chunk(from + 16, scales[1]));
  }
  static __m512i chunk(const uint8_t* from, uint8_t scale) {
    static constexpr E2m1Words kTables;
    // The lookup takes five bits: with both halves the same, the fifth does not count.
    const __m512i table =
        _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.of[scale])));
    // Four codes to each 64 bits, then each into the low bits of its 16: the lookup ignores all others.
    const __m512i fours = _mm512_cvtepu16_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
    const __m512i codes = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x000c000800040000), fours);
    return _mm512_permutexvar_epi16(codes, table);
  }
};

}  // namespace
}  // namespace sparrow::ops::cpu
