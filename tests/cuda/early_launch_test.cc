// SPDX-License-Identifier: Apache-2.0
// Kernels of a decode step start long before the ones whose results they need are over. A chain of layers has
// the same bits then as when every kernel runs alone.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "cuda/device_array.h"
#include "device/cuda/stream.h"
#include "ops/cuda/linear_held.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"

namespace sparrow::ops::cuda {
namespace {

using test::DeviceArray;

std::vector<__nv_bfloat16> random_values(std::mt19937& rng, size_t count, float size) {
  std::uniform_real_distribution<float> pick(-size, size);
  std::vector<__nv_bfloat16> values(count);
  for (auto& v : values) v = __nv_bfloat16(pick(rng));
  return values;
}

std::vector<float> random_floats(std::mt19937& rng, size_t count, float size) {
  std::uniform_real_distribution<float> pick(-size, size);
  std::vector<float> values(count);
  for (auto& v : values) v = pick(rng);
  return values;
}

// Layers of a decode step without its attention, on one set of weights.
class Chain {
 public:
  static constexpr int kHidden = 1536, kProjected = 640, kLayers = 12;
  static constexpr float kEps = 1e-6f;
  static constexpr MoeShape kExperts{kHidden, 128, 16, 4};
  static constexpr RouterShape kRouter{kHidden, 16, 4};

  Chain(int rows, uint32_t seed) : rows_(rows), rng_(seed) {
    SPARROW_CUDA(cudaMemset(router_workspace_.data(), 0, router_workspace_.size()));
    split_router(router_.data(), parts_.data(), int64_t{kRouter.num_experts} * kHidden, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  // `after` is called after every launch. One row goes through kernels of its own.
  template <typename After>
  void launch(cudaStream_t stream, const After& after) {
    for (int layer = 0; layer < kLayers; ++layer) {
      if (rows_ == 1)
        attention_of_one(stream, after);
      else
        attention_of_several(stream, after);
      moe(kExperts,
          {.x = normed_.data(),
           .ids = ids_.data(),
           .weights = weights_.data(),
           .gate_up = bf16_matrix(gate_up_.data(), 17 * 2 * kExperts.inter, kHidden),
           .down = bf16_matrix(down_.data(), 17 * kHidden, kExperts.inter),
           .alpha = 1.7f,
           .limit = 7,
           .beta = 1,
           .scaling = 2,
           .out = delta_.data(),
           .workspace = experts_workspace_.data(),
           .rows = rows_},
          stream);
      after();
    }
  }

  void reset() {
    const size_t bytes = first_.size() * sizeof(first_[0]);
    SPARROW_CUDA(cudaMemcpy(residual_.data(), first_.data(), bytes, cudaMemcpyHostToDevice));
    SPARROW_CUDA(cudaMemset(delta_.data(), 0, bytes));
    SPARROW_CUDA(cudaDeviceSynchronize());
  }

  std::vector<__nv_bfloat16> result() const {
    std::vector<__nv_bfloat16> all = residual_.download(), delta = delta_.download();
    all.insert(all.end(), delta.begin(), delta.end());
    return all;
  }

 private:
  DeviceMatrix projection() const { return bf16_matrix(in_.data(), kProjected, kHidden); }
  DeviceMatrix output() const { return bf16_matrix(out_.data(), kHidden, kProjected); }

  template <typename After>
  void attention_of_several(cudaStream_t stream, const After& after) {
    norm(stream), after();
    linear_small(projection(), normed_.data(), projected_.data(), rows_, stream);
    after();
    linear_small(output(), projected_.data(), delta_.data(), rows_, stream);
    after();
    norm(stream), after();
    route(kRouter,
          {.x = normed_.data(),
           .router = router_.data(),
           .parts = parts_.data(),
           .bias = bias_.data(),
           .ids = ids_.data(),
           .weights = weights_.data(),
           .workspace = router_workspace_.data(),
           .rows = rows_},
          stream);
    after();
  }

  template <typename After>
  void attention_of_one(cudaStream_t stream, const After& after) {
    norm(stream), after();
    linear_small(projection(), normed_.data(), projected_.data(), 1, stream);
    after();
    linear_held({.w = output(), .x = projected_.data(), .out = delta_.data()}, stream);
    after();
    norm_route(kRouter,
               {.residual = here_,
                .delta = delta_.data(),
                .norm_weight = norm_.data(),
                .eps = kEps,
                .residual_out = there_,
                .x = normed_.data(),
                .router = router_.data(),
                .bias = bias_.data(),
                .ids = ids_.data(),
                .weights = weights_.data(),
                .workspace = router_workspace_.data()},
               stream);
    std::swap(here_, there_);
    after();
  }

  void norm(cudaStream_t stream) {
    add_rms_norm({.residual = here_,
                  .delta = delta_.data(),
                  .weight = norm_.data(),
                  .out = normed_.data(),
                  .rows = rows_,
                  .hidden = kHidden,
                  .eps = kEps},
                 stream);
  }

  const int rows_;
  std::mt19937 rng_;
  const size_t count_ = size_t(rows_) * kHidden;
  const std::vector<__nv_bfloat16> first_ = random_values(rng_, count_, 1);
  DeviceArray<__nv_bfloat16> norm_{random_values(rng_, kHidden, 0.3f)};
  DeviceArray<__nv_bfloat16> in_{random_values(rng_, kProjected* kHidden, 0.04f)};
  DeviceArray<__nv_bfloat16> out_{random_values(rng_, kProjected* kHidden, 0.06f)};
  DeviceArray<__nv_bfloat16> gate_up_{random_values(rng_, size_t{17} * 256 * kHidden, 0.04f)};
  DeviceArray<__nv_bfloat16> down_{random_values(rng_, size_t{17} * 128 * kHidden, 0.1f)};
  DeviceArray<float> router_{random_floats(rng_, 16 * kHidden, 0.04f)}, bias_{random_floats(rng_, 16, 0.1f)};
  DeviceArray<__nv_bfloat16> parts_{size_t{3} * 16 * kHidden};
  DeviceArray<__nv_bfloat16> residual_{count_}, next_residual_{count_}, delta_{count_}, normed_{count_},
      projected_{size_t(rows_) * kProjected};
  __nv_bfloat16 *here_ = residual_.data(), *there_ = next_residual_.data();  // after all layers as before
  DeviceArray<int32_t> ids_{size_t(rows_) * 4};
  DeviceArray<float> weights_{size_t(rows_) * 4};
  DeviceArray<char> router_workspace_{size_t(router_workspace_bytes(kRouter, rows_))};
  DeviceArray<char> experts_workspace_{std::vector<char>(size_t(moe_workspace_bytes(kExperts, rows_)))};
};

TEST(EarlyLaunch, AChainHasTheBitsOfItsKernelsAlone) {
  const Stream stream;
  for (const int rows : {1, 2, 8, 9, 16, 17, 64}) {
    Chain chain(rows, 5);
    chain.reset();
    chain.launch(stream.get(), [&] { stream.synchronize(); });
    const std::vector<__nv_bfloat16> want = chain.result();
    const Graph graph = Graph::capture(stream, [&] { chain.launch(stream.get(), [] {}); });
    for (int round = 0; round < 4; ++round) {
      chain.reset();
      graph.launch(stream.get());
      const std::vector<__nv_bfloat16> got = chain.result();
      ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(want[0])), 0)
          << rows << " rows, round " << round;
    }
    for (const auto v : want) ASSERT_TRUE(std::isfinite(float(v))) << rows << " rows";
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
