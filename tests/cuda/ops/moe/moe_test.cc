// SPDX-License-Identifier: Apache-2.0
// The experts on a GPU against the scalar reference of the CPU path, weights packed here as moe() wants them.
#include "ops/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cuda/device_array.h"
#include "ops/cpu/reference.h"

namespace sparrow::ops {
namespace {

using test::DeviceArray;

// Of a row's norm: both round the result, many rows each expert's part as well (2^-9 / sqrt(3) each).
constexpr double kTolerance = 4e-3;

std::vector<BFloat16> random_values(int64_t count, float size, std::mt19937& rng) {
  std::uniform_real_distribution<float> uniform(-size, size);
  std::vector<BFloat16> values(static_cast<size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return to_bf16(uniform(rng)); });
  return values;
}

struct Expert {
  std::vector<BFloat16> gate, up, down;
};

class MoeCpuTest : public testing::TestWithParam<cuda::MoeShape> {
 protected:
  void SetUp() override {
    const cuda::MoeShape& s = GetParam();
    const int64_t matrix = int64_t{s.inter} * s.hidden;
    for (int e = 0; e <= s.num_experts; ++e) {
      const float in = 8 / std::sqrt(float(s.hidden)), out = 1 / std::sqrt(float(s.inter));
      experts_.push_back({random_values(matrix, in, rng_), random_values(matrix, in, rng_),
                          random_values(matrix, out, rng_)});
    }
  }

  MlpWeights cpu_weights(Expert& expert) {
    const cuda::MoeShape& s = GetParam();
    return {.gate = {Tensor(expert.gate.data(), DType::kBF16, {s.inter, s.hidden}), {}},
            .up = {Tensor(expert.up.data(), DType::kBF16, {s.inter, s.hidden}), {}},
            .down = {Tensor(expert.down.data(), DType::kBF16, {s.hidden, s.inter}), {}}};
  }

  std::vector<BFloat16> packed_gate_up() {
    const cuda::MoeShape& s = GetParam();
    std::vector<BFloat16> packed;
    for (const Expert& expert : experts_)
      for (int group = 0; group < s.inter; group += 8)
        for (const std::vector<BFloat16>* matrix : {&expert.gate, &expert.up})
          packed.insert(packed.end(), matrix->begin() + int64_t{group} * s.hidden,
                        matrix->begin() + int64_t{group + 8} * s.hidden);
    return packed;
  }

  std::mt19937 rng_{17};
  std::vector<Expert> experts_;  // the shared one last
};

INSTANTIATE_TEST_SUITE_P(Shapes, MoeCpuTest,
                         testing::Values(cuda::MoeShape{128, 128, 8, 2}, cuda::MoeShape{256, 64, 5, 3},
                                         cuda::MoeShape{128, 192, 0, 0}));

TEST_P(MoeCpuTest, AgreesWithTheCpuReference) {
  const cuda::MoeShape& s = GetParam();
  std::vector<BFloat16> down;
  std::vector<MlpWeights> routed;
  for (Expert& expert : experts_) {
    down.insert(down.end(), expert.down.begin(), expert.down.end());
    routed.push_back(cpu_weights(expert));
  }
  const MlpWeights shared = routed.back();
  routed.pop_back();
  const DeviceArray<BFloat16> gate_up_device(packed_gate_up()), down_device(down);
  for (const int rows : {1, 9, 70}) {
    std::vector<BFloat16> x = random_values(int64_t{rows} * s.hidden, 1, rng_);
    std::vector<int32_t> ids;
    std::vector<float> weights;
    for (int row = 0; row < rows; ++row)
      for (int k = 0; k < s.top_k; ++k) {
        ids.push_back(k * s.num_experts / s.top_k + static_cast<int>(rng_() % (s.num_experts / s.top_k)));
        weights.push_back(0.1f + float(rng_() % 100) / 100);
      }
    std::vector<float> expected(x.size());
    const Tensor out(expected.data(), DType::kF32, {rows, s.hidden});
    const Tensor x_view(x.data(), DType::kBF16, {rows, s.hidden});
    reference::moe(x_view, Tensor(ids.data(), DType::kI32, {rows, s.top_k}),
                   Tensor(weights.data(), DType::kF32, {rows, s.top_k}), routed, shared, 2.0f, {}, out);

    const DeviceArray<BFloat16> x_device(x), out_device(x.size());
    const DeviceArray<int32_t> ids_device(ids);
    const DeviceArray<float> weights_device(weights);
    const DeviceArray<uint8_t> workspace(
        std::vector<uint8_t>(static_cast<size_t>(cuda::moe_workspace_bytes(s, rows))));
    const auto bf16 = [](const DeviceArray<BFloat16>& a) {
      return reinterpret_cast<__nv_bfloat16*>(a.data());
    };
    const SwigluParams swiglu;
    moe(s,
        {.x = bf16(x_device),
         .ids = ids_device.data(),
         .weights = weights_device.data(),
         .gate_up = cuda::bf16_matrix(gate_up_device.data(), (s.num_experts + 1) * 2 * s.inter, s.hidden),
         .down = cuda::bf16_matrix(down_device.data(), (s.num_experts + 1) * s.hidden, s.inter),
         .alpha = swiglu.alpha,
         .limit = swiglu.limit,
         .beta = swiglu.beta,
         .scaling = 2.0f,
         .out = bf16(out_device),
         .workspace = workspace.data(),
         .rows = rows},
        nullptr);
    const std::vector<BFloat16> result = out_device.download();
    for (int row = 0; row < rows; ++row) {
      double difference = 0, norm = 0;
      for (size_t i = size_t(row) * s.hidden; i < size_t(row + 1) * s.hidden; ++i) {
        const double d = double(to_float(result[i])) - expected[i];
        difference += d * d, norm += double(expected[i]) * expected[i];
      }
      EXPECT_LT(std::sqrt(difference / norm), kTolerance) << rows << " rows, row " << row;
    }
  }
}

}  // namespace
}  // namespace sparrow::ops
