// SPDX-License-Identifier: Apache-2.0
// The vision tower's operations that treat each row on its own: LayerNorm and rotary without a norm.
#include <cmath>

#include "ops/cpu/vision_cpu.h"

namespace sparrow::ops::cpu {
namespace {

// The norm's weight in f32.
float* factors_of(Scratch::Scope& scope, const Kernels& kernels, const LayerNorm& norm, int64_t columns) {
  SPARROW_CHECK_EQ(norm.weight.numel(), columns);
  SPARROW_CHECK_EQ(norm.bias.numel(), columns);
  float* factors = scope.take<float>(columns);
  kernels.row->to_f32(norm.weight.data, norm.weight.dtype, factors, columns);
  return factors;
}

// Centred first: the variance of what is left is a plain sum of squares, in which nothing cancels.
void normalise(const Kernels& kernels, const LayerNorm& norm, const float* factors, float* x, int64_t n) {
  const auto count = static_cast<float>(n);
  kernels.vision->shift(x, -(kernels.vision->sum(x, n) / count), n);
  const float variance = kernels.row->sum_of_squares(x, n) / count;
  kernels.row->scale(x, 1.0f / std::sqrt(variance + norm.eps), factors, n);
  kernels.row->add(x, norm.bias.as<float>(), n);
}

}  // namespace

void layer_norm(Exec& exec, const Kernels& kernels, const Tensor& x, const LayerNorm& norm,
                const Tensor& out) {
  const int64_t columns = x.cols();
  SPARROW_CHECK_EQ(out.rows(), x.rows());
  Scratch::Scope scope(exec.scratch);
  const float* factors = factors_of(scope, kernels, norm, columns);
  float* buffers = scope.take<float>(exec.pool.size() * columns);
  for_each_row(exec, x.rows(), columns, [&](int64_t row, int worker) {
    float* values = buffers + worker * columns;
    kernels.row->to_f32(row_at(x, row), x.dtype, values, columns);
    normalise(kernels, norm, factors, values, columns);
    kernels.row->from_f32(values, row_at(out, row), out.dtype, columns);
  });
}

void add_layer_norm(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta,
                    const LayerNorm& norm, const Tensor& out) {
  add(exec, kernels, residual, delta);
  layer_norm(exec, kernels, residual, norm, out);
}

void rope(Exec& exec, const Kernels& kernels, const Tensor& x, int head_dim, const Rotary& rotary) {
  const int64_t half = rotary.cos.cols();
  SPARROW_CHECK_EQ(x.cols() % head_dim, 0);
  SPARROW_CHECK_LE(2 * half, head_dim);
  SPARROW_CHECK_LE(x.rows(), rotary.cos.rows());
  Scratch::Scope scope(exec.scratch);
  float* buffers = scope.take<float>(exec.pool.size() * x.cols());
  for_each_row(exec, x.rows(), x.cols(), [&](int64_t row, int worker) {
    float* values = buffers + worker * x.cols();
    const float *cos = rotary.cos.row<float>(row), *sin = rotary.sin.row<float>(row);
    kernels.row->to_f32(row_at(x, row), x.dtype, values, x.cols());
    for (int64_t head = 0; head < x.cols(); head += head_dim)
      kernels.row->rotate(values + head, cos, sin, half);
    kernels.row->from_f32(values, row_at(x, row), x.dtype, x.cols());
  });
}

}  // namespace sparrow::ops::cpu
