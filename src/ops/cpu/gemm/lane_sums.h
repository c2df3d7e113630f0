// SPDX-License-Identifier: Apache-2.0
// The sums of several vectors' lanes at once. Lanes are added in pairs half a vector apart, then a quarter,
// and so on to neighbours, whatever the vector's place among the others. static: an inline function
// shared by all files could be linked from one built for a stronger instruction set.
#pragma once

#include <immintrin.h>

namespace sparrow::ops::cpu {

#ifdef __AVX2__

// One step for two vectors (for two halves of each, from the second step on), side by side. A blend takes the
// place of a shuffle, of which a cycle has fewer, where it only swaps the terms of a sum.
static inline __m256 sum_halves(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
}
static inline __m256 sum_quarters(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
}
static inline __m256 sum_neighbours(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

// to[i] = the sum of x[i], for four; added to what is there unless `first`.
static inline void store_lane_sums(const __m256* x, float* to, bool first) {
  const __m256 pairs = sum_quarters(sum_halves(x[0], x[2]), sum_halves(x[1], x[3]));
  const __m256 sums = sum_neighbours(pairs, pairs);
  const __m128 four = _mm_shuffle_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1), 0x44);
  _mm_storeu_ps(to, first ? four : _mm_add_ps(_mm_loadu_ps(to), four));
}
// The same for two times four, in less than twice the steps.
static inline void store_lane_sums(const __m256* x, const __m256* y, float* to_x, float* to_y, bool first) {
  const __m256 sums = sum_neighbours(sum_quarters(sum_halves(x[0], y[0]), sum_halves(x[1], y[1])),
                                     sum_quarters(sum_halves(x[2], y[2]), sum_halves(x[3], y[3])));
  const __m128 of_x = _mm256_castps256_ps128(sums), of_y = _mm256_extractf128_ps(sums, 1);
  _mm_storeu_ps(to_x, first ? of_x : _mm_add_ps(_mm_loadu_ps(to_x), of_x));
  _mm_storeu_ps(to_y, first ? of_y : _mm_add_ps(_mm_loadu_ps(to_y), of_y));
}
#endif

#ifdef __AVX512F__
// The same for eight vectors of twice the lanes.
static inline void store_lane_sums(const __m512* x, float* to, bool first) {
  __m256 halves[8], y[4];
  for (int i = 0; i < 8; ++i)
    halves[i] = _mm256_add_ps(_mm512_castps512_ps256(x[i]), _mm512_extractf32x8_ps(x[i], 1));
  for (int i = 0; i < 4; ++i) y[i] = sum_halves(halves[i], halves[i + 4]);
  const __m256 sums = sum_neighbours(sum_quarters(y[0], y[1]), sum_quarters(y[2], y[3]));
  _mm256_storeu_ps(to, first ? sums : _mm256_add_ps(_mm256_loadu_ps(to), sums));
}
#endif

}  // namespace sparrow::ops::cpu
