// SPDX-License-Identifier: Apache-2.0
// The vector types CPU kernels are written over: one template, one instantiation for each instruction set.
// Included only by files built for that set (*_avx2.cc, *_avx512.cc, *_avx512bf16.cc, *_amx.cc). The types
// differ by set, so no two of these files emit the same symbol with different instructions.
#pragma once

#include "msa/common/simd_avx2.h"
#include "msa/common/simd_avx512.h"

namespace msa {

// e^x for x <= 88, to about one unit in the last place; 0 below -87.3, and so for -infinity. x must not be
// NaN.
template <typename V>
typename V::F exp(typename V::F x) {
  using F = typename V::F;
  const F low = V::set1(-87.33654f);
  const F clamped = V::max(x, low);
  const F n = V::round(V::mul(clamped, V::set1(1.44269504088896341f)));
  // ln 2 in two parts: the first has few bits, so that n * it is exact.
  F r = V::fma(n, V::set1(-0.693359375f), clamped);
  r = V::fma(n, V::set1(2.12194440e-4f), r);
  F p = V::set1(1.9875691500e-4f);
  p = V::fma(p, r, V::set1(1.3981999507e-3f));
  p = V::fma(p, r, V::set1(8.3334519073e-3f));
  p = V::fma(p, r, V::set1(4.1665795894e-2f));
  p = V::fma(p, r, V::set1(1.6666665459e-1f));
  p = V::fma(p, r, V::set1(5.0000001201e-1f));
  p = V::fma(V::mul(p, r), r, V::add(r, V::set1(1.0f)));
  return V::keep_where_greater(V::scale_by_power(p, n), x, low);
}

// 2^x for x <= 127, to 2e-7; 0 at and below -126. x must not be NaN.
template <typename V>
typename V::F exp2(typename V::F x) {
  using F = typename V::F;
  const F low = V::set1(-126.0f);
  const F clamped = V::max(x, low);
  const F n = V::round(clamped);
  const F f = V::sub(clamped, n);
  F y = V::set1(0.00133813021f);
  y = V::fma(y, f, V::set1(0.00966636837f));
  y = V::fma(y, f, V::set1(0.0555038117f));
  y = V::fma(y, f, V::set1(0.240223497f));
  y = V::fma(y, f, V::set1(0.693147182f));
  y = V::fma(y, f, V::set1(1.0f));
  return V::keep_where_greater(V::scale_by_power(y, n), x, low);
}

template <typename V>
float exp2_of(float x) {
  float lanes[V::kLanes];
  V::store(lanes, exp2<V>(V::set1(x)));
  return lanes[0];
}

}  // namespace msa
