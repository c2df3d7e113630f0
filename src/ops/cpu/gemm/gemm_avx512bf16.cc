// SPDX-License-Identifier: Apache-2.0
// The matrix product on vdpbf16ps: a lane takes two neighbours of k at a time, so both operands are used as
// they are stored. Its arithmetic is that of AMX's tdpbf16ps: exact products, sums in f32 rounded to nearest,
// subnormal numbers taken as zero and flushed to zero.
#include "ops/cpu/gemm/e4m3_bf16.h"
#include "ops/cpu/gemm/gemm_simd.h"

namespace sparrow::ops::cpu {
namespace {

struct UnitBf16 {
  using Element = uint16_t;
  using Operand = __m512i;
  using Sum = __m512;
  static constexpr int kVectors = 1;
  static constexpr int kOutputs = 8, kRows = 3;
  // bf16 weights are used as they lie, so a second pass over a panel costs no more than the first; codes
  // would be dequantised again.
  template <MatrixFormat kFormat>
  static constexpr int64_t kStreamRows = is_mx(kFormat) ? kRows : 3 * kRows;

  static void convert(const void* from, DType, uint16_t* to, int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(uint16_t));
  }
  static Operand load(const uint16_t* p) { return _mm512_loadu_si512(p); }
  static void store(uint16_t* p, Operand x) { _mm512_storeu_si512(p, x); }
  template <MatrixFormat, typename Use>
  static inline __attribute__((always_inline)) void chunk(const char* p, Use&& use) {
    use(0, _mm512_loadu_si512(p));
  }
  using E2m1 = E2m1Bf16;
  using E4m3 = E4m3Bf16;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum dot(Operand a, Operand b, Sum sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static Sum dot_at(Operand a, const uint16_t* b, Sum sum) { return dot(a, load(b), sum); }
  static void finish(const Sum* sums, float* c, bool first) { store_lane_sums(sums, c, first); }
};

}  // namespace

constinit const GemmEngine kAvx512Bf16Gemm = GemmSimd<UnitBf16>::kTable;

}  // namespace sparrow::ops::cpu
