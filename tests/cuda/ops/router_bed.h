// SPDX-License-Identifier: Apache-2.0
// A problem for the router, and the same in device memory.
#pragma once

#include <vector>

#include "cuda/device_array.h"
#include "ops/cuda/router.h"
#include "ops/ops_cases.h"

namespace sparrow::ops::cuda {

using test::DeviceArray;

struct Case {
  RouterShape shape;
  int rows;
};

struct Problem {
  RouterShape shape;
  int rows;
  Owned x, bias;
  OwnedWeight gate;
  std::vector<__nv_bfloat16> x_values;
  std::vector<float> gate_values, bias_values;

  explicit Problem(const Case& c, uint32_t seed = 11) : shape(c.shape), rows(c.rows) {
    std::mt19937 rng(seed);
    x = random_tensor(rng, DType::kBF16, rows, shape.hidden);
    // Logits of spread 1, whatever the hidden size.
    gate = random_weight(rng, DType::kF32, shape.num_experts, shape.hidden,
                         1.0f / std::sqrt(static_cast<float>(shape.hidden)));
    bias = random_tensor(rng, DType::kF32, 1, shape.num_experts, 0.1f);
    read();
  }
  void read() {
    x_values.resize(x.bytes.size() / 2);
    std::memcpy(x_values.data(), x.bytes.data(), x.bytes.size());
    gate_values.resize(gate.values.bytes.size() / 4);
    std::memcpy(gate_values.data(), gate.values.bytes.data(), gate.values.bytes.size());
    bias_values.resize(bias.bytes.size() / 4);
    std::memcpy(bias_values.data(), bias.bytes.data(), bias.bytes.size());
  }
};

struct Routes {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// The problem in device memory.
class Device {
 public:
  explicit Device(const Problem& problem)
      : problem_(problem),
        x_(problem.x_values),
        router_(problem.gate_values),
        bias_(problem.bias_values),
        parts_(3 * problem.gate_values.size()),
        ids_(size_t(problem.rows) * problem.shape.top_k),
        weights_(ids_.size()),
        workspace_(size_t(router_workspace_bytes(problem.shape, problem.rows))) {
    SPARROW_CUDA(cudaMemset(workspace_.data(), 0, workspace_.size()));
    split_router(router_.data(), parts_.data(), static_cast<int64_t>(router_.size()), nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
  }
  void launch(int rows, cudaStream_t stream = nullptr, const RealRows& real = {},
              const WantedExperts& wanted = {}) {
    route(problem_.shape,
          {.x = x_.data(),
           .router = router_.data(),
           .parts = parts_.data(),
           .bias = bias_.data(),
           .ids = ids_.data(),
           .weights = weights_.data(),
           .workspace = workspace_.data(),
           .rows = rows,
           .real = real,
           .wanted = wanted},
          stream);
  }
  Routes run(int rows, const RealRows& real = {}, const WantedExperts& wanted = {}) {
    poison();
    launch(rows, nullptr, real, wanted);
    return result();
  }
  void launch_with_norm(NormRouterArgs norm, cudaStream_t stream = nullptr) {
    norm.router = router_.data(), norm.bias = bias_.data();
    norm.ids = ids_.data(), norm.weights = weights_.data(), norm.workspace = workspace_.data();
    norm_route(problem_.shape, norm, stream);
  }
  Routes run_with_norm(const NormRouterArgs& norm) {
    poison();
    launch_with_norm(norm);
    return result();
  }
  Routes result() const { return {ids_.download(), weights_.download()}; }
  std::vector<__nv_bfloat16> parts() const { return parts_.download(); }

 private:
  void poison() {
    SPARROW_CUDA(cudaMemset(ids_.data(), 0xfe, ids_.size() * 4));
    SPARROW_CUDA(cudaMemset(weights_.data(), 0xff, weights_.size() * 4));
  }

  const Problem& problem_;
  DeviceArray<__nv_bfloat16> x_;
  DeviceArray<float> router_, bias_;
  DeviceArray<__nv_bfloat16> parts_;
  DeviceArray<int32_t> ids_;
  DeviceArray<float> weights_;
  DeviceArray<char> workspace_;
};

}  // namespace sparrow::ops::cuda
