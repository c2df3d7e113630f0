// SPDX-License-Identifier: Apache-2.0
// VisionKernels over a vector type V. Included as row_simd.h is, and by its rules.
#pragma once

#include "ops/cpu/row_simd.h"

namespace sparrow::ops::cpu {

template <typename V>
struct VisionSimd {
  using Row = RowSimd<V>;
  using F = typename V::F;
  static constexpr int64_t kLanes = V::kLanes;

  static float sum(const float* x, int64_t n) {
    F sums[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) sums[j] = V::add(sums[j], V::load(x + i + j * kLanes));
    for (; i < n; i += kLanes)
      sums[0] = V::add(sums[0], i + kLanes <= n ? V::load(x + i) : Row::load_tail(x + i, n - i));
    return V::sum(V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  }

  // x[i] = f(x[i])
  template <typename Function>
  static void each(float* x, int64_t n, Function f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) V::store(x + i, f(V::load(x + i)));
    if (i < n) Row::store_tail(x + i, f(Row::load_tail(x + i, n - i)), n - i);
  }

  static void shift(float* x, float by, int64_t n) {
    const F all = V::set1(by);
    each(x, n, [=](F a) { return V::add(a, all); });
  }

  // erfc(z) e^(z^2) / t for z >= 0, with t = 1 / (1 + 0.45 z), to 1e-7: a polynomial in 2 t - 1 through its
  // values at ten Chebyshev nodes.
  static F scaled_erfc(F t) {
    static constexpr float kTerms[] = {
        4.671402928e-01f,  3.354344368e-01f,  1.627891005e-01f, 4.214063951e-02f, -2.856785048e-03f,
        -5.141033626e-03f, -1.470257775e-04f, 7.073091030e-04f, 1.706842552e-05f, -8.403391097e-05f};
    const F u = V::fma(V::set1(2.0f), t, V::set1(-1.0f));
    F sum = V::set1(kTerms[9]);
    for (int i = 8; i >= 0; --i) sum = V::fma(sum, u, V::set1(kTerms[i]));
    return sum;
  }

  // x times the share of a normal distribution below it. That share is taken from the tail, where nothing
  // cancels, and for positive x it is 1 minus that.
  static F gelu_of(F x) {
    const F one = V::set1(1.0f);
    const F z = V::mul(V::max(x, V::sub(V::zero(), x)), V::set1(0.707106781f));
    const F t = V::div(one, V::fma(V::set1(0.45f), z, one));
    const F falling = msa::exp<V>(V::sub(V::zero(), V::mul(z, z)));
    const F tail = V::mul(V::mul(V::set1(0.5f), t), V::mul(scaled_erfc(t), falling));
    const F rest = V::fma(V::set1(-2.0f), tail, one);
    return V::mul(x, V::add(tail, V::keep_where_greater(rest, x, V::zero())));
  }
  static void gelu(float* x, int64_t n) { each(x, n, gelu_of); }

  static float exponentials(float* x, float scale, int64_t n) {
    F most = V::load(x);
    for (int64_t i = kLanes; i < n; i += kLanes) most = V::max(V::load(x + i), most);
    const F top = V::set1(V::largest(most)), scales = V::set1(scale);
    F sums = V::zero();
    for (int64_t i = 0; i < n; i += kLanes) {
      const F e = msa::exp<V>(V::mul(V::sub(V::load(x + i), top), scales));
      V::store(x + i, e);
      sums = V::add(sums, e);
    }
    return V::sum(sums);
  }

  static constexpr VisionKernels kTable = {sum, shift, gelu, exponentials};
};

}  // namespace sparrow::ops::cpu
