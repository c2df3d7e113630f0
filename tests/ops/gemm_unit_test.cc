// SPDX-License-Identifier: Apache-2.0
// The walks of GemmSimd over a unit in plain C++ that does what vdpbf16ps does. Their bits must not depend on
// rows or strips, and this shows it on machines that lack the instruction.
#include "ops/cpu/gemm/gemm_simd.h"
#include "ops/cpu/ops_cpu.h"
#include "ops/ops_cases.h"

namespace sparrow::ops::cpu {
namespace {

struct PlainUnit {
  using Element = uint16_t;
  struct Operand {
    uint16_t bf16[32];
  };
  struct Sum {
    float lanes[16];
  };
  static constexpr int kVectors = 1, kOutputs = 8, kRows = 3;
  template <MatrixFormat kFormat>
  static constexpr int64_t kStreamRows = is_mx(kFormat) ? 3 : 9;

  static void convert(const void* from, DType, uint16_t* to, int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(uint16_t));
  }
  static Operand load(const uint16_t* p) {
    Operand x;
    std::memcpy(x.bf16, p, sizeof(x));
    return x;
  }
  static void store(uint16_t* p, const Operand& x) { std::memcpy(p, x.bf16, sizeof(x)); }
  template <MatrixFormat>
  static void chunk(const char* p, auto&& use) {
    use(0, load(reinterpret_cast<const uint16_t*>(p)));
  }
  struct E2m1 {
    static void chunk(const uint8_t* p, uint8_t scale, auto&& use) {
      Operand x;
      for (int i = 0; i < 32; ++i) {
        const auto code = static_cast<uint8_t>(p[i / 2] >> (i % 2 * 4));
        x.bf16[i] = to_bf16(e2m1_to_float(code) * e8m0_to_float(scale)).bits;
      }
      use(0, x);
    }
  };
  struct E4m3 {
    // Misreads odd scales, and says so: what comes of that must not show.
    using Factor = uint8_t;
    static constexpr int64_t kStep = 64;
    struct Watch {
      uint32_t beyond = 0;
    };
    static bool saw_nan(const Watch&) { return false; }
    static bool saw_zeros(const Watch&) { return false; }
    static Factor factor(uint8_t scale, Watch& watch) {
      watch.beyond |= scale & 1;
      return static_cast<Factor>(scale & ~1);
    }
    static void factors(const uint8_t* scales, int64_t n, Watch& watch, Factor* to) {
      for (int64_t i = 0; i < n; ++i) to[i] = factor(scales[i], watch);
    }
    static void step(const uint8_t* p, const Factor* factors, Watch& watch, auto&& use) {
      for (int i = 0; i < 2; ++i)
        chunk(p + 32 * i, factors[i], watch, [&](int, const Operand& x) { use(i, x); });
    }
    static void chunk(const uint8_t* p, Factor factor, Watch&, auto&& use) {
      Operand x;
      exact_chunk(p, factor, &x);
      use(0, x);
    }
    static void exact_chunk(const uint8_t* p, uint8_t scale, Operand* to) {
      for (int i = 0; i < 32; ++i) to->bf16[i] = to_bf16(e4m3_to_float(p[i]) * e8m0_to_float(scale)).bits;
    }
  };
  static Sum zero() { return {}; }
  static Sum dot(const Operand& a, const Operand& b, Sum sum) {
    const auto value = [](uint16_t bits) { return to_float(BFloat16{bits}); };
    for (int i = 0; i < 16; ++i)
      for (const int k : {2 * i + 1, 2 * i})
        sum.lanes[i] = std::fma(value(a.bf16[k]), value(b.bf16[k]), sum.lanes[i]);
    return sum;
  }
  static Sum dot_at(const Operand& a, const uint16_t* b, const Sum& sum) { return dot(a, load(b), sum); }
  static void finish(const Sum* sums, float* c, bool first) {
    for (int o = 0; o < kOutputs; ++o) {
      Sum sum = sums[o];
      for (int n = 8; n > 0; n /= 2)
        for (int i = 0; i < n; ++i) sum.lanes[i] += sum.lanes[i + n];
      c[o] = first ? sum.lanes[0] : c[o] + sum.lanes[0];
    }
  }
};

// c [rows, outputs] of rows [first, first + rows) and outputs from `output` on.
std::vector<float> multiply(const Tensor& x, int64_t first, int64_t rows, const Weight& w, int64_t output,
                            int64_t outputs) {
  using Gemm = GemmSimd<PlainUnit>;
  const int64_t columns = x.cols(), stride = round_up(outputs, kRowGroup);
  std::vector<char> packed(static_cast<size_t>(Gemm::Packed::packed_bytes(rows, columns)),
                           static_cast<char>(0xff));
  std::vector<char> workspace(static_cast<size_t>(Gemm::workspace_bytes(columns)));
  std::vector<float> c(static_cast<size_t>(round_up(rows, kRowGroup) * stride)), result;
  for (int64_t r = 0; r < rows; r += kRowGroup) {
    const void* pointers[kRowGroup];
    const int64_t count = std::min(kRowGroup, rows - r);
    for (int64_t i = 0; i < count; ++i) pointers[i] = x.row<BFloat16>(first + r + i);
    Gemm::Packed::pack({pointers, x.dtype, count, columns, packed.data(), columns, r, 0});
  }
  const WeightView view = view_of(w, columns);
  Gemm::multiply({packed.data(), 0, rows, view, output, outputs, c.data(), stride, workspace.data()});
  for (int64_t r = 0; r < rows; ++r)
    result.insert(result.end(), c.begin() + r * stride, c.begin() + r * stride + outputs);
  return result;
}

TEST(GemmUnit, IsTheProductAndRowsAreBitExact) {
  for (const MatrixFormat format : {MatrixFormat::kBF16, MatrixFormat::kMxfp8, MatrixFormat::kMxfp4})
    for (const int64_t columns : {96, 1000, 1056, 2080}) {
      if (is_mx(format) && columns % 32 != 0) continue;
      std::mt19937 rng(40);
      constexpr int64_t kRows = 150, kOutputs = 27;
      const OwnedWeight weight = random_weight(rng, format, kOutputs, columns);
      const Owned x = random_tensor(rng, DType::kBF16, kRows, columns);
      const std::vector<float> all = multiply(x.t, 0, kRows, weight.w, 0, kOutputs);
      for (int64_t o = 0; o < kOutputs; ++o) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < columns; ++k) {
          const double term = static_cast<double>(reference::load(x.t, 149 * columns + k)) *
                              static_cast<double>(reference::weight_at(weight.w, o, k));
          sum += term, magnitude += std::fabs(term);
        }
        ASSERT_NEAR(all[static_cast<size_t>(149 * kOutputs + o)], sum, 1e-6 * magnitude);
      }
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 31, 129})
        for (const int64_t output : {0, 5})
          for (const int64_t outputs : {1, 8, 22}) {
            const std::vector<float> some = multiply(x.t, 20, rows, weight.w, output, outputs);
            for (int64_t r = 0; r < rows; ++r)
              ASSERT_EQ(std::memcmp(&some[static_cast<size_t>(r * outputs)],
                                    &all[static_cast<size_t>((20 + r) * kOutputs + output)],
                                    static_cast<size_t>(outputs) * sizeof(float)),
                        0)
                  << rows << " rows, " << outputs << " outputs from " << output << ", row " << r;
          }
    }
}

}  // namespace
}  // namespace sparrow::ops::cpu
