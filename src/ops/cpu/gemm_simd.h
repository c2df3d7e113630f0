// SPDX-License-Identifier: Apache-2.0
// The general matrix product over a vector type V: any mix of weights and activations, everything in f32.
// Included only by *_avx2.cc and *_avx512.cc.
//
// Lanes run along k. One vector accumulator for each (output, row), added up in one order at the end: the
// shape of the register tile changes which loads are shared, never a sum. Packed activations are f32 rows
// padded with zeros.
#pragma once

#include "ops/cpu/row_simd.h"

namespace sparrow::ops::cpu {

// e4m3 of kLanes bytes as floats, times a power of two. Both steps are exact.
template <typename V>
struct E4m3;

template <>
struct E4m3<msa::Avx2> {
  static __m256 load(const uint8_t* p, float scale) {
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
  static __m512 load(const uint8_t* p, float scale) {
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

// One weight row read kLanes elements at a time.
template <typename V, typename T>
struct WeightRow {
  const T* values;

  static WeightRow at(const WeightView& w, int64_t row) {
    return {static_cast<const T*>(w.values) + row * w.stride};
  }
  typename V::F load(int64_t k) const { return V::load(values + k); }
  typename V::F load_tail(int64_t k, int64_t n) const { return RowSimd<V>::load_tail(values + k, n); }
};

template <typename V>
struct WeightRow<V, uint8_t> {
  const uint8_t *values, *scales;

  static WeightRow at(const WeightView& w, int64_t row) {
    return {static_cast<const uint8_t*>(w.values) + row * w.stride, w.scales + row * w.scale_stride};
  }
  typename V::F load(int64_t k) const {
    // 2^(s - 127) as a float: s in the exponent field; s = 0 is the one subnormal, s = 255 is NaN.
    const uint32_t s = scales[k / 32];
    const uint32_t bits = s == 0 ? 0x400000u : s == 255 ? 0x7fc00000u : s << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return E4m3<V>::load(values + k, scale);
  }
  typename V::F load_tail(int64_t, int64_t) const { return V::zero(); }  // columns are a multiple of 32
};

template <typename V>
struct GemmSimd {
  using F = typename V::F;
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int kOutputs = 4;                     // of a register tile
  static constexpr int kRows = V::kLanes == 16 ? 4 : 2;  // as many accumulators as the registers hold

  static int64_t packed_bytes(int64_t rows, int64_t columns) {
    return rows * round_up(columns, kColumnGroup) * static_cast<int64_t>(sizeof(float));
  }
  static int64_t workspace_bytes(int64_t columns) { return packed_bytes(kOutputs, columns); }

  static void pack(const PackJob& job) {
    const int64_t stride = round_up(job.packed_columns, kColumnGroup),
                  padded = round_up(job.columns, kColumnGroup);
    for (int64_t r = 0; r < job.count; ++r) {
      float* to = static_cast<float*>(job.packed) + (job.first_row + r) * stride + job.first_column;
      RowSimd<V>::to_f32(job.rows[r], job.type, to, job.columns);
      for (int64_t k = job.columns; k < padded; ++k) to[k] = 0.0f;
    }
  }

  // c[r][o] over the first `columns` elements, in whole vectors, of rows of f32 that lie `padded` apart.
  template <int kO, int kR>
  static void tile(const float* w, const float* x, int64_t columns, int64_t padded, float* c,
                   int64_t c_stride) {
    F sums[kO][kR];
    for (int o = 0; o < kO; ++o)
      for (int r = 0; r < kR; ++r) sums[o][r] = V::zero();
    for (int64_t k = 0; k < columns; k += kLanes) {
      F xs[kR];
      for (int r = 0; r < kR; ++r) xs[r] = V::load(x + r * padded + k);
      for (int o = 0; o < kO; ++o) {
        const F ws = V::load(w + o * padded + k);
        for (int r = 0; r < kR; ++r) sums[o][r] = V::fma(ws, xs[r], sums[o][r]);
      }
    }
    for (int o = 0; o < kO; ++o)
      for (int r = 0; r < kR; ++r) c[r * c_stride + o] = V::sum(sums[o][r]);
  }

  template <typename T>
  static void expand(const WeightView& w, int64_t row, float* to) {
    const WeightRow<V, T> from = WeightRow<V, T>::at(w, row);
    int64_t k = 0;
    for (; k + kLanes <= w.columns; k += kLanes) V::store(to + k, from.load(k));
    if (k < w.columns) V::store(to + k, from.load_tail(k, w.columns - k));
  }

  // Many rows: each weight row becomes f32 once and then serves all rows from the cache.
  template <typename T>
  static void multiply_many(const StripJob& job, const float* x, int64_t padded) {
    float* w = static_cast<float*>(job.workspace);
    const int64_t columns = job.weight.columns;
    for (int64_t o = 0; o < job.outputs; o += kOutputs) {
      const int64_t outputs = job.outputs - o < kOutputs ? job.outputs - o : kOutputs;
      for (int64_t i = 0; i < kOutputs; ++i)
        if (i < outputs) expand<T>(job.weight, job.first_output + o + i, w + i * padded);
      int64_t r = 0;
      if (outputs == kOutputs)
        for (; r + kRows <= job.rows; r += kRows)
          tile<kOutputs, kRows>(w, x + r * padded, columns, padded, job.c + r * job.c_stride + o,
                                job.c_stride);
      for (; r < job.rows; ++r)
        for (int64_t i = 0; i < outputs; ++i)
          tile<1, 1>(w + i * padded, x + r * padded, columns, padded, job.c + r * job.c_stride + o + i,
                     job.c_stride);
    }
  }

  // Few rows: the weights are read once from memory and expanded in registers.
  template <typename T, int kO>
  static void dot(const StripJob& job, int64_t o, const float* x, float* c) {
    WeightRow<V, T> w[kO];
    F sums[kO];
    for (int i = 0; i < kO; ++i) {
      w[i] = WeightRow<V, T>::at(job.weight, job.first_output + o + i);
      sums[i] = V::zero();
    }
    int64_t k = 0;
    for (; k + kLanes <= job.weight.columns; k += kLanes) {
      const F xs = V::load(x + k);
      for (int i = 0; i < kO; ++i) sums[i] = V::fma(w[i].load(k), xs, sums[i]);
    }
    if (k < job.weight.columns) {
      const F xs = V::load(x + k);
      for (int i = 0; i < kO; ++i) sums[i] = V::fma(w[i].load_tail(k, job.weight.columns - k), xs, sums[i]);
    }
    for (int i = 0; i < kO; ++i) c[i] = V::sum(sums[i]);
  }
  template <typename T>
  static void multiply_few(const StripJob& job, const float* x, int64_t padded) {
    int64_t o = 0;
    for (; o + kOutputs <= job.outputs; o += kOutputs)
      for (int64_t r = 0; r < job.rows; ++r)
        dot<T, kOutputs>(job, o, x + r * padded, job.c + r * job.c_stride + o);
    for (; o < job.outputs; ++o)
      for (int64_t r = 0; r < job.rows; ++r) dot<T, 1>(job, o, x + r * padded, job.c + r * job.c_stride + o);
  }

  template <typename T>
  static void multiply_typed(const StripJob& job) {
    const int64_t padded = round_up(job.weight.columns, kColumnGroup);
    const float* x = static_cast<const float*>(job.packed) + job.first_row * padded;
    if (job.rows < 4)
      multiply_few<T>(job, x, padded);
    else
      multiply_many<T>(job, x, padded);
  }
  static void multiply(const StripJob& job) {
    if (job.weight.type == DType::kF32) return multiply_typed<float>(job);
    if (job.weight.type == DType::kBF16) return multiply_typed<uint16_t>(job);
    multiply_typed<uint8_t>(job);
  }

  static constexpr GemmEngine kTable = {packed_bytes, workspace_bytes, pack, multiply};
};

}  // namespace sparrow::ops::cpu
