// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

namespace sparrow::ops::reference {
namespace {

std::vector<float> load_row(const Tensor& x, int64_t row, int64_t first, int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[static_cast<size_t>(i)] = load(x, row * x.row_stride + first + i);
  return values;
}

void store_row(const Tensor& x, int64_t row, int64_t first, const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i)
    store(x, row * x.row_stride + first + static_cast<int64_t>(i), values[i]);
}

// The product of one of so many equal parts of the columns.
std::vector<float> multiply(const std::vector<float>& x, const Weight& weight, int part = 0, int parts = 1) {
  const int64_t columns = weight.in() / parts;
  std::vector<float> y(static_cast<size_t>(weight.out()));
  for (int64_t o = 0; o < weight.out(); ++o) {
    double sum = 0;
    for (int64_t k = part * columns; k < (part + 1) * columns; ++k)
      sum += static_cast<double>(x[static_cast<size_t>(k)]) * static_cast<double>(weight_at(weight, o, k));
    y[static_cast<size_t>(o)] = static_cast<float>(sum);
  }
  return y;
}

// ((part 0 + part 1) + (part 2 + part 3)) + ...: the sum of parts [first, first + count).
template <typename Part>
std::vector<float> sum_parts(int first, int count, const Part& part) {
  if (count == 1) return part(first);
  std::vector<float> sum = sum_parts(first, count / 2, part);
  const std::vector<float> rest = sum_parts(first + count / 2, count / 2, part);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += rest[i];
  return sum;
}

std::vector<float> normalised(const std::vector<float>& x, const Tensor& weight, float eps) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  const float r = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(x.size())) + eps);
  std::vector<float> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = (x[i] * r) * (1.0f + load(weight, static_cast<int64_t>(i)));
  return y;
}

// std::min and std::max would drop a NaN in one argument order and keep it in the other.
float clamp_keeping_nan(float x, float low, float high) {
  return x > high ? high : x < low ? low : x;
}

float swiglu_of(float gate, float up, const SwigluParams& p) {
  const float g = clamp_keeping_nan(gate, -std::numeric_limits<float>::infinity(), p.limit);
  const float u = clamp_keeping_nan(up, -p.limit, p.limit);
  const double sigmoid = 1.0 / (1.0 + std::exp(-static_cast<double>(p.alpha) * static_cast<double>(g)));
  return static_cast<float>((static_cast<double>(u) + static_cast<double>(p.beta)) * static_cast<double>(g) *
                            sigmoid);
}

float gelu_of(float x) {
  const double z = static_cast<double>(x);
  return static_cast<float>(0.5 * z * std::erfc(-z / std::numbers::sqrt2));
}

// The hidden row of one expert, rounded to the activation type.
std::vector<float> hidden_row(const std::vector<float>& x, const MlpWeights& mlp, const SwigluParams& swiglu,
                              DType type) {
  const std::vector<float> gate = multiply(x, mlp.gate), up = multiply(x, mlp.up);
  std::vector<float> hidden(gate.size());
  for (size_t i = 0; i < hidden.size(); ++i) {
    hidden[i] = swiglu_of(gate[i], up[i], swiglu);
    if (type == DType::kBF16) hidden[i] = to_float(to_bf16(hidden[i]));
  }
  return hidden;
}

}  // namespace

float load(const Tensor& tensor, int64_t offset) {
  if (tensor.dtype == DType::kF32) return tensor.as<float>()[offset];
  return to_float(tensor.as<BFloat16>()[offset]);
}

void store(const Tensor& tensor, int64_t offset, float value) {
  if (tensor.dtype == DType::kF32)
    tensor.as<float>()[offset] = value;
  else
    tensor.as<BFloat16>()[offset] = to_bf16(value);
}

float weight_at(const Weight& weight, int64_t out, int64_t in) {
  const MatrixFormat format = weight.format();
  const int64_t offset = out * weight.values.row_stride + in / values_per_element(format);
  if (!is_mx(format)) return load(weight.values, offset);
  const uint8_t byte = static_cast<const uint8_t*>(weight.values.data)[offset];
  const float scale = e8m0_to_float(weight.scales.row<uint8_t>(out)[in / kScaleGroup]);
  const float code = format == MatrixFormat::kMxfp8 ? e4m3_to_float(byte)
                     : in % 2 == 0                  ? e2m1_to_float(byte)
                                                    : e2m1_to_float(byte >> 4);
  return to_float(to_bf16(code * scale));  // exact but among bf16's subnormal numbers
}

void linear(const Tensor& x, std::span<const Projection> projections, int parts) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::vector<float> values = load_row(x, row, 0, x.cols());
    for (const Projection& projection : projections) {
      std::vector<float> sums =
          sum_parts(0, parts, [&](int part) { return multiply(values, *projection.weight, part, parts); });
      for (size_t i = 0; i < sums.size(); ++i) {
        if (!projection.bias.empty()) sums[i] += projection.bias.as<float>()[i];
        if (projection.gelu) sums[i] = gelu_of(sums[i]);
      }
      store_row(projection.out, row, 0, sums);
    }
  }
}

void embed(std::span<const int32_t> ids, const Tensor& table, const Tensor& out) {
  for (size_t row = 0; row < ids.size(); ++row)
    store_row(out, static_cast<int64_t>(row), 0, load_row(table, ids[row], 0, table.cols()));
}

void rms_norm(const Tensor& x, const Tensor& weight, float eps, const Tensor& out) {
  for (int64_t row = 0; row < x.rows(); ++row)
    store_row(out, row, 0, normalised(load_row(x, row, 0, x.cols()), weight, eps));
}

void add(const Tensor& residual, const Tensor& delta) {
  for (int64_t row = 0; row < residual.rows(); ++row)
    for (int64_t i = 0; i < residual.cols(); ++i) {
      const int64_t at = row * residual.row_stride + i;
      store(residual, at, load(residual, at) + load(delta, row * delta.row_stride + i));
    }
}

void add_rms_norm(const Tensor& residual, const Tensor& delta, const Tensor& weight, float eps,
                  const Tensor& out) {
  add(residual, delta);
  rms_norm(residual, weight, eps, out);
}

void convert(const Tensor& x, const Tensor& out) {
  for (int64_t row = 0; row < x.rows(); ++row) store_row(out, row, 0, load_row(x, row, 0, x.cols()));
}

void head_norm_rope(const Tensor& x, const Tensor& norm_weight, float eps, const Rotary& rotary) {
  const int64_t head_dim = norm_weight.numel(), half = rotary.cos.cols();
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t first = 0; first < x.cols(); first += head_dim) {
      const std::vector<float> in = normalised(load_row(x, row, first, head_dim), norm_weight, eps);
      std::vector<float> out = in;
      for (int64_t i = 0; i < half; ++i) {
        const size_t a = static_cast<size_t>(i), b = static_cast<size_t>(i + half);
        const float cos = rotary.cos.row<float>(row)[i], sin = rotary.sin.row<float>(row)[i];
        out[a] = in[a] * cos - in[b] * sin;
        out[b] = in[b] * cos + in[a] * sin;
      }
      store_row(x, row, first, out);
    }
}

void mlp(const Tensor& x, const MlpWeights& weights, const SwigluParams& swiglu, const Tensor& out,
         int parts) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::vector<float> hidden = hidden_row(load_row(x, row, 0, x.cols()), weights, swiglu, x.dtype);
    store_row(out, row, 0,
              sum_parts(0, parts, [&](int part) { return multiply(hidden, weights.down, part, parts); }));
  }
}

void route(const Tensor& x, const Weight& gate, const Tensor& bias, int top_k, const Tensor& ids,
           const Tensor& weights) {
  const size_t experts = static_cast<size_t>(gate.out());
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::vector<float> logits = multiply(load_row(x, row, 0, x.cols()), gate);
    std::vector<float> sigmoids(experts), choices(experts);
    std::vector<int32_t> order(experts);
    for (size_t e = 0; e < experts; ++e) {
      sigmoids[e] = 1.0f / (1.0f + std::exp(-logits[e]));
      choices[e] = sigmoids[e] + load(bias, static_cast<int64_t>(e));
      if (std::isnan(choices[e])) choices[e] = -std::numeric_limits<float>::infinity();
      order[e] = static_cast<int32_t>(e);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return choices[static_cast<size_t>(a)] > choices[static_cast<size_t>(b)];
    });
    std::sort(order.begin(), order.begin() + top_k);
    float sum = 0;
    for (int k = 0; k < top_k; ++k) sum += sigmoids[static_cast<size_t>(order[static_cast<size_t>(k)])];
    for (int k = 0; k < top_k; ++k) {
      const int32_t expert = order[static_cast<size_t>(k)];
      ids.row<int32_t>(row)[k] = expert;
      weights.row<float>(row)[k] = sigmoids[static_cast<size_t>(expert)] / sum;
    }
  }
}

void moe(const Tensor& x, const Tensor& ids, const Tensor& weights, std::span<const MlpWeights> experts,
         const MlpWeights& shared, float scaling, const SwigluParams& swiglu, const Tensor& out, int parts) {
  for (int64_t row = 0; row < x.rows(); ++row) {
    const std::vector<float> values = load_row(x, row, 0, x.cols());
    struct Term {
      const MlpWeights* expert;
      float factor;
      std::vector<float> hidden;
    };
    std::vector<Term> terms;
    for (int64_t k = 0; k < ids.cols(); ++k)
      terms.push_back({&experts[static_cast<size_t>(ids.row<int32_t>(row)[k])],
                       weights.row<float>(row)[k] * scaling,
                       {}});
    std::erase_if(terms, [](const Term& term) { return term.expert->gate.values.empty(); });
    terms.push_back({&shared, 1.0f, {}});
    for (Term& term : terms) term.hidden = hidden_row(values, *term.expert, swiglu, x.dtype);
    store_row(out, row, 0, sum_parts(0, parts, [&](int part) {
                std::vector<float> sum(static_cast<size_t>(out.cols()), 0.0f);
                for (const Term& term : terms) {
                  const std::vector<float> y = multiply(term.hidden, term.expert->down, part, parts);
                  for (size_t i = 0; i < sum.size(); ++i) sum[i] += term.factor * y[i];
                }
                return sum;
              }));
  }
}

}  // namespace sparrow::ops::reference
