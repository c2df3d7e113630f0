// SPDX-License-Identifier: Apache-2.0
// RowKernels over a vector type V. Included only by *_avx2.cc and *_avx512.cc; everything is a template over
// V, so that no two instruction sets share a symbol.
//
// Whole vectors run in vector code and the tail in scalar code; both do the same roundings per element.
#pragma once

#include <cmath>
#include <cstring>

#include "msa/common/simd.h"
#include "ops/cpu/kernels.h"

namespace sparrow::ops::cpu {

template <typename V>
struct RowSimd {
  using F = typename V::F;
  static constexpr int64_t kLanes = V::kLanes;

  // The last n < kLanes elements as a vector padded with zeros.
  template <typename T>
  static F load_tail(const T* p, int64_t n) {
    T padded[kLanes] = {};
    std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(T));
    return V::load(padded);
  }
  template <typename T>
  static void store_tail(T* p, F x, int64_t n) {
    T padded[kLanes];
    V::store(padded, x);
    std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(T));
  }

  template <typename From, typename To>
  static void convert(const From* from, To* to, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) V::store(to + i, V::load(from + i));
    if (i < n) store_tail(to + i, load_tail(from + i, n - i), n - i);
  }

  static void to_f32(const void* from, DType type, float* to, int64_t n) {
    if (type == DType::kF32)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    else
      convert(static_cast<const uint16_t*>(from), to, n);
  }
  static void from_f32(const float* from, void* to, DType type, int64_t n) {
    if (type == DType::kF32)
      std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
    else
      convert(from, static_cast<uint16_t*>(to), n);
  }

  static float sum_of_squares(const float* x, int64_t n) {
    F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) {
        const F v = V::load(x + i + j * kLanes);
        sums[j] = V::fma(v, v, sums[j]);
      }
    for (; i < n; i += kLanes) {
      const F v = i + kLanes <= n ? V::load(x + i) : load_tail(x + i, n - i);
      sums[0] = V::fma(v, v, sums[0]);
    }
    return V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  }

  // x[i] = f(x[i], y[i])
  template <typename Function>
  static void combine(float* x, const float* y, int64_t n, Function f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) V::store(x + i, f(V::load(x + i), V::load(y + i)));
    if (i < n) store_tail(x + i, f(load_tail(x + i, n - i), load_tail(y + i, n - i)), n - i);
  }

  static void scale(float* x, float factor, const float* weight, int64_t n) {
    const F factors = V::set1(factor);
    combine(x, weight, n, [=](F a, F w) { return V::mul(V::mul(a, factors), w); });
  }
  static void add(float* x, const float* y, int64_t n) {
    combine(x, y, n, [](F a, F b) { return V::add(a, b); });
  }
  static void add_scaled(float* sum, const float* x, float factor, int64_t n) {
    const F factors = V::set1(factor);
    combine(sum, x, n, [=](F s, F a) { return V::fma(factors, a, s); });
  }

  static void swiglu(float* gate, const float* up, float alpha, float limit, float beta, int64_t n) {
    const F top = V::set1(limit), bottom = V::set1(-limit), one = V::set1(1.0f);
    // The smallest input whose e^-x is finite; below it the sigmoid is 0 to any precision that matters.
    const F least = V::set1(-88.0f);
    combine(gate, up, n, [=](F g, F u) {
      // min and max return their second operand when one is NaN: this order lets NaN through.
      const F clamped_gate = V::min(top, g);
      const F clamped_up = V::max(bottom, V::min(top, u));
      const F x = V::mul(V::set1(alpha), clamped_gate);
      const F e = msa::exp<V>(V::sub(V::zero(), V::max(x, least)));
      const F sigmoid = V::keep_where_greater(V::div(one, V::add(one, e)), x, least);
      return V::mul(V::add(clamped_up, V::set1(beta)), V::mul(clamped_gate, sigmoid));
    });
  }

  static void rotate(float* x, const float* cos, const float* sin, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F a = V::load(x + i), b = V::load(x + half + i), c = V::load(cos + i), s = V::load(sin + i);
      V::store(x + i, V::sub(V::mul(a, c), V::mul(b, s)));
      V::store(x + half + i, V::add(V::mul(b, c), V::mul(a, s)));
    }
    for (; i < half; ++i) {
      const float a = x[i], b = x[half + i];
      x[i] = a * cos[i] - b * sin[i];
      x[half + i] = b * cos[i] + a * sin[i];
    }
  }

  static constexpr RowKernels kTable = {to_f32, from_f32,   sum_of_squares, scale,
                                        add,    add_scaled, swiglu,         rotate};
};

}  // namespace sparrow::ops::cpu
