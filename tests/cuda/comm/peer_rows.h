// SPDX-License-Identifier: Apache-2.0
// Rows: random partial rows of all ranks, and what the host says must come of them.
#pragma once

#include <cuda_bf16.h>

#include <random>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "ops/cpu/reference.h"
#include "ops/cuda/comm/exchange.h"

namespace sparrow::test {

using Bf16 = __nv_bfloat16;

// Random rows of all ranks. The same on every rank for the same seed.
struct Rows {
  int rows, hidden;
  std::vector<std::vector<float>> partial;  // by rank: numbers of the form that is sent
  std::vector<float> residual, weight;      // bf16 numbers

  Rows(int ranks, int rows, int hidden, bool f32, uint32_t seed) : rows(rows), hidden(hidden) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](size_t count, bool round, float sigma) {
      std::vector<float> values(count);
      for (float& x : values) {
        x = sigma * normal(random);
        if (round) x = to_float(to_bf16(x));
      }
      return values;
    };
    for (int r = 0; r < ranks; ++r) partial.push_back(fill(size_t(rows) * hidden, !f32, 1.0f));
    residual = fill(size_t(rows) * hidden, true, 3.0f);
    weight = fill(hidden, true, 0.3f);
  }

  // The residual of a row after it has taken the sum over the ranks in.
  std::vector<BFloat16> sum(int row, ops::cuda::RankRange from, bool with_residual) const {
    std::vector<BFloat16> x(hidden);
    for (int c = 0; c < hidden; ++c) {
      std::vector<float> parts;
      for (int r = from.begin; r < from.end; ++r) parts.push_back(partial[r][size_t(row) * hidden + c]);
      for (; parts.size() > 1; parts.resize(parts.size() / 2))
        for (size_t i = 0; i < parts.size() / 2; ++i) parts[i] = parts[2 * i] + parts[2 * i + 1];
      x[c] = to_bf16((with_residual ? residual[size_t(row) * hidden + c] : 0.0f) + parts[0]);
    }
    return x;
  }
  std::vector<BFloat16> norm(std::vector<BFloat16> x, float eps) const {
    std::vector<BFloat16> w(hidden), out(hidden);
    for (int c = 0; c < hidden; ++c) w[c] = to_bf16(weight[c]);
    const auto tensor = [&](std::vector<BFloat16>& v) {
      return Tensor(v.data(), DType::kBF16, {1, int64_t{hidden}});
    };
    ops::reference::rms_norm(tensor(x), tensor(w), eps, tensor(out));
    return out;
  }
};

inline std::vector<Bf16> as_bf16(const std::vector<float>& values) {
  std::vector<Bf16> to;
  for (const float x : values) to.push_back(__float2bfloat16(x));
  return to;
}

}  // namespace sparrow::test
