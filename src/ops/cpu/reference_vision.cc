// SPDX-License-Identifier: Apache-2.0
// The vision tower's operations in plain scalar code.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/reference.h"

namespace sparrow::ops::reference {

void layer_norm(const Tensor& x, const LayerNorm& norm, const Tensor& out) {
  const int64_t n = x.cols();
  for (int64_t row = 0; row < x.rows(); ++row) {
    const auto value = [&](int64_t i) { return static_cast<double>(load(x, row * x.row_stride + i)); };
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; ++i) mean += value(i) / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) variance += std::pow(value(i) - mean, 2) / static_cast<double>(n);
    const double factor = 1.0 / std::sqrt(variance + static_cast<double>(norm.eps));
    for (int64_t i = 0; i < n; ++i)
      store(out, row * out.row_stride + i,
            static_cast<float>((value(i) - mean) * factor * static_cast<double>(load(norm.weight, i)) +
                               static_cast<double>(load(norm.bias, i))));
  }
}

void add_layer_norm(const Tensor& residual, const Tensor& delta, const LayerNorm& norm, const Tensor& out) {
  add(residual, delta);
  layer_norm(residual, norm, out);
}

void rope(const Tensor& x, int head_dim, const Rotary& rotary) {
  const int64_t half = rotary.cos.cols();
  for (int64_t row = 0; row < x.rows(); ++row)
    for (int64_t head = 0; head < x.cols(); head += head_dim)
      for (int64_t i = 0; i < half; ++i) {
        const int64_t at = row * x.row_stride + head + i;
        const float a = load(x, at), b = load(x, at + half);
        const float cos = rotary.cos.row<float>(row)[i], sin = rotary.sin.row<float>(row)[i];
        store(x, at, a * cos - b * sin);
        store(x, at + half, b * cos + a * sin);
      }
}

void attend_segments(const SegmentAttention& of) {
  const int64_t head_dim = of.q.cols() / of.heads;
  const auto value = [](const Tensor& t, int64_t row, int64_t column) {
    return static_cast<double>(load(t, row * t.row_stride + column));
  };
  for (size_t s = 0; s + 1 < of.begins.size(); ++s)
    for (int64_t row = of.begins[s]; row < of.begins[s + 1]; ++row)
      for (int64_t head = 0; head < of.q.cols(); head += head_dim) {
        std::vector<double> weights;
        for (int64_t key = of.begins[s]; key < of.begins[s + 1]; ++key) {
          double score = 0;
          for (int64_t c = head; c < head + head_dim; ++c) score += value(of.q, row, c) * value(of.k, key, c);
          weights.push_back(score * static_cast<double>(of.scale));
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& weight : weights) total += weight = std::exp(weight - most);
        for (int64_t c = head; c < head + head_dim; ++c) {
          double sum = 0;
          for (size_t i = 0; i < weights.size(); ++i)
            sum += weights[i] * value(of.v, of.begins[s] + static_cast<int64_t>(i), c);
          store(of.out, row * of.out.row_stride + c, static_cast<float>(sum / total));
        }
      }
}

}  // namespace sparrow::ops::reference
