// SPDX-License-Identifier: Apache-2.0
// Operations that treat each row on its own: embedding, norms, residual adds, rotary.
#include <cmath>
#include <cstring>

#include "ops/cpu/ops_cpu.h"

namespace sparrow::ops::cpu {
namespace {

// 1 + weight in f32.
float* norm_factors(Scratch::Scope& scope, const Kernels& kernels, const Tensor& weight) {
  const int64_t n = weight.numel();
  float* factors = scope.take<float>(n);
  kernels.row->to_f32(weight.data, weight.dtype, factors, n);
  for (int64_t i = 0; i < n; ++i) factors[i] += 1.0f;
  return factors;
}

void normalise(const RowKernels& row, float* x, const float* factors, float eps, int64_t n) {
  const float mean = row.sum_of_squares(x, n) / static_cast<float>(n);
  row.scale(x, 1.0f / std::sqrt(mean + eps), factors, n);
}

}  // namespace

void embed(Exec& exec, const Kernels& kernels, std::span<const int32_t> ids, const Tensor& table,
           const Tensor& out) {
  const int64_t columns = out.cols();
  SPARROW_CHECK_EQ(table.cols(), columns);
  SPARROW_CHECK_EQ(out.rows(), static_cast<int64_t>(ids.size()));
  Scratch::Scope scope(exec.scratch);
  float* buffers = scope.take<float>(exec.pool.size() * columns);
  for_each_row(exec, out.rows(), columns, [&](int64_t row, int worker) {
    const char* from = row_at(table, ids[static_cast<size_t>(row)]);
    if (table.dtype == out.dtype) {
      std::memcpy(row_at(out, row), from, static_cast<size_t>(columns) * size_of(out.dtype));
      return;
    }
    float* x = buffers + worker * columns;
    kernels.row->to_f32(from, table.dtype, x, columns);
    kernels.row->from_f32(x, row_at(out, row), out.dtype, columns);
  });
}

void rms_norm(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& weight, float eps,
              const Tensor& out) {
  const int64_t columns = x.cols();
  SPARROW_CHECK_EQ(weight.numel(), columns);
  Scratch::Scope scope(exec.scratch);
  const float* factors = norm_factors(scope, kernels, weight);
  float* buffers = scope.take<float>(exec.pool.size() * columns);
  for_each_row(exec, x.rows(), columns, [&](int64_t row, int worker) {
    float* values = buffers + worker * columns;
    kernels.row->to_f32(row_at(x, row), x.dtype, values, columns);
    normalise(*kernels.row, values, factors, eps, columns);
    kernels.row->from_f32(values, row_at(out, row), out.dtype, columns);
  });
}

namespace {

// residual row += delta row, rounded; `sum` holds the rounded values, `scratch` is a second row.
void add_row(const RowKernels& kernels, const Tensor& residual, const Tensor& delta, int64_t row, float* sum,
             float* scratch) {
  const int64_t columns = residual.cols();
  kernels.to_f32(row_at(residual, row), residual.dtype, sum, columns);
  kernels.to_f32(row_at(delta, row), delta.dtype, scratch, columns);
  kernels.add(sum, scratch, columns);
  kernels.from_f32(sum, row_at(residual, row), residual.dtype, columns);
}

}  // namespace

void add_rms_norm(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta,
                  const Tensor& weight, float eps, const Tensor& out) {
  const int64_t columns = residual.cols();
  SPARROW_CHECK_EQ(weight.numel(), columns);
  SPARROW_CHECK_EQ(delta.rows(), residual.rows());
  Scratch::Scope scope(exec.scratch);
  const float* factors = norm_factors(scope, kernels, weight);
  float* buffers = scope.take<float>(exec.pool.size() * 2 * columns);
  for_each_row(exec, residual.rows(), columns, [&](int64_t row, int worker) {
    float* values = buffers + worker * 2 * columns;
    add_row(*kernels.row, residual, delta, row, values, values + columns);
    // The norm sees the residual as stored.
    kernels.row->to_f32(row_at(residual, row), residual.dtype, values, columns);
    normalise(*kernels.row, values, factors, eps, columns);
    kernels.row->from_f32(values, row_at(out, row), out.dtype, columns);
  });
}

void add(Exec& exec, const Kernels& kernels, const Tensor& residual, const Tensor& delta) {
  const int64_t columns = residual.cols();
  SPARROW_CHECK_EQ(delta.rows(), residual.rows());
  SPARROW_CHECK_EQ(delta.cols(), columns);
  Scratch::Scope scope(exec.scratch);
  float* buffers = scope.take<float>(exec.pool.size() * 2 * columns);
  for_each_row(exec, residual.rows(), columns, [&](int64_t row, int worker) {
    float* values = buffers + worker * 2 * columns;
    add_row(*kernels.row, residual, delta, row, values, values + columns);
  });
}

void convert(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& out) {
  SPARROW_CHECK_EQ(out.rows(), x.rows());
  SPARROW_CHECK_EQ(out.cols(), x.cols());
  for_each_row(exec, x.rows(), x.cols(), [&](int64_t row, int) {
    kernels.row->from_f32(x.row<float>(row), row_at(out, row), out.dtype, x.cols());
  });
}

void head_norm_rope(Exec& exec, const Kernels& kernels, const Tensor& x, const Tensor& norm_weight, float eps,
                    const Rotary& rotary) {
  const int64_t head_dim = norm_weight.numel(), heads = x.cols() / head_dim, half = rotary.cos.cols();
  SPARROW_CHECK_EQ(x.cols() % head_dim, 0);
  SPARROW_CHECK_LE(2 * half, head_dim);
  SPARROW_CHECK_LE(x.rows(), rotary.cos.rows());
  Scratch::Scope scope(exec.scratch);
  const float* factors = norm_factors(scope, kernels, norm_weight);
  float* buffers = scope.take<float>(exec.pool.size() * head_dim);
  for_each_row(exec, x.rows(), x.cols(), [&](int64_t row, int worker) {
    float* values = buffers + worker * head_dim;
    const float *cos = rotary.cos.row<float>(row), *sin = rotary.sin.row<float>(row);
    char* head = row_at(x, row);
    for (int64_t h = 0; h < heads; ++h, head += head_dim * static_cast<int64_t>(size_of(x.dtype))) {
      kernels.row->to_f32(head, x.dtype, values, head_dim);
      normalise(*kernels.row, values, factors, eps, head_dim);
      kernels.row->rotate(values, cos, sin, half);
      kernels.row->from_f32(values, head, x.dtype, head_dim);
    }
  });
}

}  // namespace sparrow::ops::cpu
