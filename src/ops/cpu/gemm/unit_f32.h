// SPDX-License-Identifier: Apache-2.0
// The unit of gemm_simd.h that widens everything to f32, over a vector type V. Included only by *_avx2.cc and
// *_avx512.cc.
#pragma once

#include "ops/cpu/gemm/e2m1_f32.h"
#include "ops/cpu/gemm/e4m3_f32.h"
#include "ops/cpu/gemm/gemm_simd.h"
#include "ops/cpu/row_simd.h"

namespace sparrow::ops::cpu {

template <typename V>
struct UnitF32 {
  using Element = float;
  using Operand = typename V::F;
  using Sum = typename V::F;
  static constexpr int kVectors = 32 / V::kLanes;
  // As many sums as the registers hold beside the operands.
  static constexpr int kOutputs = V::kLanes / 2, kRows = 3;
  // Each tile of rows widens the weights again: beyond these, it is cheaper to do it once.
  template <MatrixFormat kFormat>
  static constexpr int64_t kStreamRows = is_mx(kFormat) ? kRows : 2 * kRows;

  static void convert(const void* from, DType type, float* to, int64_t n) {
    RowSimd<V>::to_f32(from, type, to, n);
  }
  static Operand load(const float* p) { return V::load(p); }
  static void store(float* p, Operand x) { V::store(p, x); }
  template <MatrixFormat kFormat, typename Use>
  static inline __attribute__((always_inline)) void chunk(const char* p, Use&& use) {
    using T = std::conditional_t<kFormat == MatrixFormat::kF32, float, uint16_t>;
    for (int v = 0; v < kVectors; ++v) use(v, V::load(reinterpret_cast<const T*>(p) + v * V::kLanes));
  }
  using E2m1 = cpu::E2m1<V>;
  using E4m3 = cpu::E4m3<V>;
  static Sum zero() { return V::zero(); }
  // V::fma, with the sum kept in its register: left the choice of operand to overwrite, g++ moves and spills
  // sums.
  static Sum dot(Operand a, Operand b, Sum sum) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
  // The same, of b where it lies: one row leaves no register for it.
  static Sum dot_at(Operand a, const float* b, Sum sum) {
    asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "m"(*reinterpret_cast<const Operand*>(b)));
    return sum;
  }
  static void finish(const Sum* sums, float* c, bool first) { store_lane_sums(sums, c, first); }
  // Two times kOutputs at once, where vectors are short.
  static void finish(const Sum* a, const Sum* b, float* to_a, float* to_b,
                     bool first) requires(kOutputs == 4) {
    store_lane_sums(a, b, to_a, to_b, first);
  }
};

}  // namespace sparrow::ops::cpu
