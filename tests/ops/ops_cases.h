// SPDX-License-Identifier: Apache-2.0
// Random tensors and the list of instruction sets to try, shared by the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "ops/cpu/reference.h"
#include "ops/ops.h"

namespace sparrow::ops {

// A tensor that owns its memory.
struct Owned {
  std::vector<char> bytes;
  Tensor t;

  Owned() = default;
  Owned(DType dtype, int64_t rows, int64_t columns, int64_t row_stride = 0) {
    if (row_stride == 0) row_stride = columns;
    // Poison: what a kernel leaves unwritten reads as NaN.
    bytes.assign(static_cast<size_t>(rows * row_stride) * size_of(dtype), static_cast<char>(0xff));
    t = Tensor(bytes.data(), dtype, {rows, columns});
    t.row_stride = row_stride;
  }
  Owned(Owned&&) = default;
  Owned& operator=(Owned&&) = default;

  const char* row(int64_t r) const {
    return bytes.data() + static_cast<size_t>(r * t.row_stride) * size_of(t.dtype);
  }
  size_t row_bytes() const { return static_cast<size_t>(t.cols()) * size_of(t.dtype); }
};

inline Owned copy_of(const Owned& from) {
  Owned to;
  to.bytes = from.bytes;
  to.t = from.t;
  to.t.data = to.bytes.data();
  return to;
}

inline Owned random_tensor(std::mt19937& rng, DType dtype, int64_t rows, int64_t columns, float sigma = 1.0f,
                           int64_t row_stride = 0) {
  Owned x(dtype, rows, columns, row_stride);
  std::normal_distribution<float> normal(0.0f, sigma);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) reference::store(x.t, r * x.t.row_stride + c, normal(rng));
  return x;
}

struct OwnedWeight {
  Owned values, scales;
  Weight w;
};

// `sigma` is the spread of the values; codes are any but NaN, with scales that bring them to about that
// spread.
inline OwnedWeight random_weight(std::mt19937& rng, MatrixFormat format, int64_t out, int64_t in,
                                 float sigma = 0.05f) {
  OwnedWeight weight;
  if (is_mx(format)) {
    const bool is_mxfp8 = format == MatrixFormat::kMxfp8;
    weight.values = Owned(dtype_of(format), out, in / values_per_element(format));
    weight.scales = Owned(DType::kU8, out, in / kScaleGroup);
    for (char& byte : weight.values.bytes) {
      const uint32_t code = rng() & 0xff;
      byte = static_cast<char>(is_mxfp8 && (code & 0x7f) == 0x7f ? code - 1 : code);
    }
    for (char& byte : weight.scales.bytes) byte = static_cast<char>((is_mxfp8 ? 114 : 119) + rng() % 8);
    weight.w = {weight.values.t, weight.scales.t};
  } else {
    weight.values = random_tensor(rng, dtype_of(format), out, in, sigma);
    weight.w = {weight.values.t, {}};
  }
  return weight;
}
inline OwnedWeight random_weight(std::mt19937& rng, DType dtype, int64_t out, int64_t in,
                                 float sigma = 0.05f) {
  return random_weight(rng, format_of(dtype), out, in, sigma);
}

// The same matrix with its scales applied; exact in bf16 and in f32.
inline OwnedWeight dequantised(const Weight& from, DType dtype) {
  OwnedWeight weight;
  weight.values = Owned(dtype, from.out(), from.in());
  for (int64_t o = 0; o < from.out(); ++o)
    for (int64_t k = 0; k < from.in(); ++k)
      reference::store(weight.values.t, o * from.in() + k, reference::weight_at(from, o, k));
  weight.w = {weight.values.t, {}};
  return weight;
}

// Every instruction set this machine has, the scalar reference left out.
inline std::vector<CpuIsa> vector_isas() {
  std::vector<CpuIsa> isas;
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx})
    if (isa <= detect_cpu_isa()) isas.push_back(isa);
  return isas;
}

// An Exec with its own threads and scratch.
struct Machine {
  ThreadPool pool;
  Scratch scratch;
  Exec exec;

  explicit Machine(CpuIsa isa, int threads = 2) : pool(threads), exec{pool, scratch, isa} {}
};

// x w^T, of one matrix.
inline Owned multiply(CpuIsa isa, int threads, const Tensor& x, const Weight& weight, DType type) {
  Machine machine(isa, threads);
  Owned out(type, x.rows(), weight.out());
  const Projection projection{&weight, out.t};
  linear(machine.exec, x, {&projection, 1});
  return out;
}

// Row by row and bit by bit.
inline ::testing::AssertionResult same_rows(const Owned& a, int64_t a_first, const Owned& b, int64_t b_first,
                                            int64_t count) {
  for (int64_t r = 0; r < count; ++r)
    if (std::memcmp(a.row(a_first + r), b.row(b_first + r), a.row_bytes()) != 0)
      return ::testing::AssertionFailure() << "row " << a_first + r << " differs from row " << b_first + r;
  return ::testing::AssertionSuccess();
}

// |got - want| <= relative * |want| + absolute everywhere; NaN must meet NaN.
inline ::testing::AssertionResult near(const Tensor& got, const Tensor& want, float relative,
                                       float absolute) {
  for (int64_t r = 0; r < want.rows(); ++r)
    for (int64_t c = 0; c < want.cols(); ++c) {
      const float g = reference::load(got, r * got.row_stride + c);
      const float w = reference::load(want, r * want.row_stride + c);
      if (std::isnan(g) && std::isnan(w)) continue;
      if (!(std::fabs(g - w) <= relative * std::fabs(w) + absolute))
        return ::testing::AssertionFailure() << "[" << r << ", " << c << "]: got " << g << ", want " << w;
    }
  return ::testing::AssertionSuccess();
}

}  // namespace sparrow::ops
