// SPDX-License-Identifier: Apache-2.0
// The router on the device against the CPU's scalar reference (double sums): the same experts but for
// near-ties, the weights to a few units of the last place of f32.
#include <gtest/gtest.h>

#include <cstdio>

#include "cuda/ops/router_bed.h"
#include "device/cuda/stream.h"
#include "ops/cuda/rows.h"

namespace sparrow::ops::cuda {
namespace {

// Rows whose choice the rounding of f32 may turn: the last expert in and the first one out are this close.
constexpr float kNearTie = 1e-6f, kWeightTolerance = 2e-6f;

struct Compared {
  int near_ties = 0, wrong = 0;
  float worst_weight = 0;
};

Compared compare(const Problem& p, const Routes& got) {
  Compared result;
  Owned ids(DType::kI32, 1, p.shape.top_k), weights(DType::kF32, 1, p.shape.top_k);
  Owned logits(DType::kF32, 1, p.shape.num_experts);
  // Large problems by sample: the reference takes a millisecond for a row.
  const int step = std::max(1, p.rows / 200);
  for (int row = 0; row < p.rows; row += step) {
    Tensor x = p.x.t;
    x.data = static_cast<char*>(x.data) + size_t(row) * p.shape.hidden * 2;
    x.shape[0] = 1;
    reference::route(x, p.gate.w, p.bias.t, p.shape.top_k, ids.t, weights.t);
    const size_t first = size_t(row) * p.shape.top_k;
    if (std::memcmp(got.ids.data() + first, ids.bytes.data(), ids.row_bytes()) == 0) {
      for (int k = 0; k < p.shape.top_k; ++k)
        result.worst_weight = std::max(result.worst_weight,
                                       std::fabs(got.weights[first + k] / weights.t.row<float>(0)[k] - 1.0f));
      continue;
    }
    const Projection projection{&p.gate.w, logits.t};
    reference::linear(x, {&projection, 1});
    std::vector<float> choices(p.shape.num_experts);
    for (int e = 0; e < p.shape.num_experts; ++e)
      choices[e] = 1.0f / (1.0f + std::exp(-logits.t.row<float>(0)[e])) + p.bias_values[e];
    std::sort(choices.begin(), choices.end(), std::greater<>());
    if (choices[p.shape.top_k - 1] - choices[p.shape.top_k] < kNearTie)
      ++result.near_ties;
    else
      ++result.wrong;
  }
  return result;
}

class RouterOnDevice : public ::testing::TestWithParam<Case> {};

TEST_P(RouterOnDevice, PicksTheExpertsOfTheReference) {
  const Problem problem(GetParam());
  Device device(problem);
  const Compared result = compare(problem, device.run(problem.rows));
  std::printf("  %d near-ties, weights within %.2g\n", result.near_ties, result.worst_weight);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_LE(result.near_ties, 1);
  EXPECT_LT(result.worst_weight, kWeightTolerance);
}

TEST_P(RouterOnDevice, RepeatsBitForBit) {
  const Problem problem(GetParam());
  Device device(problem);
  const Routes first = device.run(problem.rows);
  for (int i = 0; i < 5; ++i) {
    const Routes again = device.run(problem.rows);
    ASSERT_EQ(first.ids, again.ids);
    ASSERT_EQ(std::memcmp(first.weights.data(), again.weights.data(), first.weights.size() * 4), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RouterOnDevice,
                         ::testing::Values(Case{{128, 8, 2}, 1}, Case{{128, 8, 2}, 40},
                                           Case{{128, 8, 2}, 1100}, Case{{1024, 16, 4}, 17},
                                           Case{{1024, 16, 4}, 1100}, Case{{6144, 128, 4}, 1},
                                           Case{{6144, 128, 4}, 16}, Case{{6144, 128, 4}, 64},
                                           Case{{6144, 128, 4}, 1000}, Case{{6144, 128, 4}, 1025},
                                           Case{{6144, 128, 4}, 8192}, Case{{192, 20, 8}, 33},
                                           Case{{192, 100, 3}, 1500}, Case{{8192, 256, 16}, 100},
                                           Case{{8192, 256, 16}, 5}, Case{{64, 5, 5}, 3}),
                         [](const auto& info) {
                           const Case& c = info.param;
                           return std::to_string(c.shape.hidden) + "x" + std::to_string(c.shape.num_experts) +
                                  "top" + std::to_string(c.shape.top_k) + "rows" + std::to_string(c.rows);
                         });

TEST(RouterOnDeviceTest, TheThreeTermsHoldEveryBitOfTheMatrix) {
  const Problem problem(Case{{1024, 16, 4}, 1});
  const std::vector<__nv_bfloat16> parts = Device(problem).parts();
  const size_t count = problem.gate_values.size();
  for (size_t i = 0; i < count; ++i) {
    const double sum =
        double{float(parts[i])} + double{float(parts[count + i])} + double{float(parts[2 * count + i])};
    ASSERT_EQ(sum, double{problem.gate_values[i]}) << i;
  }
}

TEST(RouterOnDeviceTest, ARowDoesNotDependOnTheOthers) {
  const Problem problem(Case{{1024, 16, 4}, 700});
  Device device(problem);
  const Routes all = device.run(700);
  for (const int rows : {1, 7, 16, 17, 33, 64, 65, 600}) {
    const Routes some = device.run(rows);
    for (int i = 0; i < rows * 4; ++i) {
      ASSERT_EQ(some.ids[i], all.ids[i]) << rows;
      ASSERT_EQ(some.weights[i], all.weights[i]) << rows;
    }
  }
}

TEST(RouterOnDeviceTest, TiesGoToTheLowerId) {
  for (const int rows : {5, 1100}) {
    Problem problem(Case{{128, 32, 4}, rows});
    for (auto& w : problem.gate_values) w = 0;
    for (auto& b : problem.bias_values) b = 0;
    problem.bias_values[20] = -0.0f;  // equal to 0
    problem.bias_values[30] = 1;
    Device device(problem);
    const Routes got = device.run(rows);
    for (int row = 0; row < rows; ++row) {
      const std::vector<int32_t> ids(got.ids.begin() + row * 4, got.ids.begin() + row * 4 + 4);
      ASSERT_EQ(ids, (std::vector<int32_t>{0, 1, 2, 30})) << row;
      for (int k = 0; k < 4; ++k) ASSERT_EQ(got.weights[row * 4 + k], 0.25f);
    }
  }
}

TEST(RouterOnDeviceTest, NotANumberIsPickedLast) {
  Problem problem(Case{{128, 8, 2}, 3});
  for (int i = 0; i < 128; ++i) problem.gate_values[5 * 128 + i] = NAN;
  Device device(problem);
  const Routes got = device.run(3);
  for (const int32_t id : got.ids) {
    EXPECT_NE(id, 5);
    EXPECT_TRUE(id >= 0 && id < 8) << id;
  }
}

TEST(RouterOnDeviceTest, RunsInAGraphTheSameAsOutside) {
  for (const int rows : {1, 16, 40, 1100}) {
    const Problem problem(Case{{1024, 128, 4}, rows});
    Device device(problem);
    const Routes want = device.run(rows);
    const Stream stream;
    const Graph graph = Graph::capture(stream, [&] {
      for (int i = 0; i < 4; ++i) device.launch(rows, stream.get());
    });
    for (int i = 0; i < 3; ++i) graph.launch(stream.get());
    const Routes got = device.result();
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(std::memcmp(got.weights.data(), want.weights.data(), want.weights.size() * 4), 0);
  }
}

// Rows that are padding come last and have no experts; the others have what they have without them.
TEST(RouterOnDeviceTest, PaddingHasNoExperts) {
  for (const int rows : {1, 5, 16, 17, 64, 700, 1100}) {  // every kernel there is
    const Problem problem(Case{{1024, 16, 4}, rows});
    Device device(problem);
    const Routes all = device.run(rows);
    for (const int there : {0, 1, rows / 2, rows - 1, rows}) {
      const DeviceArray<int32_t> num_rows(std::vector<int32_t>{there});
      const Routes got = device.run(rows, {.count = num_rows.data()});
      for (int i = 0; i < rows * 4; ++i) {
        ASSERT_EQ(got.ids[i], i < there * 4 ? all.ids[i] : -1) << there << " of " << rows << " rows";
        if (i >= there * 4) continue;
        ASSERT_EQ(got.weights[i], all.weights[i]) << there << " of " << rows << " rows";
      }
    }
  }
}

// Padding comes last in each group of rows, and experts of other ranks are not there.
TEST(RouterOnDeviceTest, GroupsHaveTheirPaddingAndRanksTheirExperts) {
  for (const int rows : {3, 16, 64, 700, 1100}) {
    const Problem problem(Case{{1024, 16, 4}, rows});
    Device device(problem);
    const Routes all = device.run(rows);
    const DeviceArray<int32_t> count(std::vector<int32_t>{0, 1});
    const RealRows real{.count = count.data(), .groups = 2, .first_row = {0, rows / 2}};
    const Routes got = device.run(rows, real, {.first = 4, .count = 5});
    for (int i = 0; i < rows * 4; ++i) {
      const bool there = i / 4 == rows / 2 && all.ids[i] >= 4 && all.ids[i] < 9;
      ASSERT_EQ(got.ids[i], there ? all.ids[i] - 4 : -1) << "slot " << i << " of " << rows << " rows";
    }
  }
}

// ---- with the norm ----

// What a norm reads and writes, in device memory, and what it makes of that on the host: the router's input.
struct NormProblem {
  Problem problem;
  Owned residual, delta, weight;

  explicit NormProblem(const RouterShape& c) : problem(Case{c, 1}) {
    std::mt19937 rng(23);
    residual = random_tensor(rng, DType::kBF16, 1, c.hidden, 3.0f);
    delta = random_tensor(rng, DType::kBF16, 1, c.hidden, 0.5f);
    weight = random_tensor(rng, DType::kBF16, 1, c.hidden, 0.3f);
    Owned sum = copy_of(residual);
    reference::add_rms_norm(sum.t, delta.t, weight.t, kEps, problem.x.t);
    problem.read();
  }
  static constexpr float kEps = 1e-6f;
};

struct NormDevice {
  static std::vector<__nv_bfloat16> values_of(const Owned& x) {
    std::vector<__nv_bfloat16> values(x.bytes.size() / 2);
    std::memcpy(values.data(), x.bytes.data(), x.bytes.size());
    return values;
  }
  explicit NormDevice(const NormProblem& p)
      : residual(values_of(p.residual)),
        delta(values_of(p.delta)),
        weight(values_of(p.weight)),
        residual_out(residual.size()),
        x(residual.size()) {}
  NormRouterArgs args() const {
    NormRouterArgs args{};
    args.residual = residual.data(), args.delta = delta.data(), args.norm_weight = weight.data();
    args.eps = NormProblem::kEps, args.residual_out = residual_out.data(), args.x = x.data();
    return args;
  }
  DeviceArray<__nv_bfloat16> residual, delta, weight, residual_out, x;
};

::testing::AssertionResult same_bits(const DeviceArray<__nv_bfloat16>& a,
                                     const DeviceArray<__nv_bfloat16>& b) {
  if (std::memcmp(a.download().data(), b.download().data(), a.size() * 2) == 0)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "other bits";
}

class NormRouterOnDevice : public ::testing::TestWithParam<RouterShape> {};

TEST_P(NormRouterOnDevice, PicksTheExpertsOfTheReferenceAndLeavesWhatTheNormDoes) {
  const NormProblem p(GetParam());
  Device device(p.problem);
  const NormDevice norm(p), alone(p);
  const Routes got = device.run_with_norm(norm.args());
  const Compared result = compare(p.problem, got);
  EXPECT_EQ(result.wrong, 0);
  EXPECT_LE(result.near_ties, 1);
  EXPECT_LT(result.worst_weight, kWeightTolerance);
  EXPECT_TRUE(same_bits(norm.residual, alone.residual));
  add_rms_norm({alone.residual.data(), alone.delta.data(), alone.weight.data(), alone.x.data(), 1,
                GetParam().hidden, NormProblem::kEps},
               nullptr);
  EXPECT_TRUE(same_bits(norm.residual_out, alone.residual));
  EXPECT_TRUE(same_bits(norm.x, alone.x));

  const Stream stream;
  const Graph graph = Graph::capture(stream, [&] {
    for (int i = 0; i < 4; ++i) device.launch_with_norm(norm.args(), stream.get());
  });
  for (int i = 0; i < 3; ++i) graph.launch(stream.get());
  const Routes again = device.result();
  EXPECT_EQ(again.ids, got.ids);
  EXPECT_EQ(std::memcmp(again.weights.data(), got.weights.data(), got.weights.size() * 4), 0);
}

INSTANTIATE_TEST_SUITE_P(Shapes, NormRouterOnDevice,
                         ::testing::Values(RouterShape{64, 5, 5}, RouterShape{128, 8, 2},
                                           RouterShape{192, 100, 3}, RouterShape{1024, 16, 4},
                                           RouterShape{2048, 20, 8}, RouterShape{2112, 20, 8},
                                           RouterShape{6144, 128, 4}, RouterShape{6144, 200, 4},
                                           RouterShape{6208, 128, 4}, RouterShape{8192, 256, 16}),
                         [](const auto& info) {
                           return std::to_string(info.param.hidden) + "x" +
                                  std::to_string(info.param.num_experts) + "top" +
                                  std::to_string(info.param.top_k);
                         });

TEST(NormRouterOnDeviceTest, PaddingHasNoExperts) {
  const NormProblem p(RouterShape{1024, 16, 4});
  Device device(p.problem);
  const NormDevice norm(p);
  const Routes want = device.run_with_norm(norm.args());
  for (const int there : {0, 1, 3}) {
    const DeviceArray<int32_t> num_rows(std::vector<int32_t>{there});
    NormRouterArgs args = norm.args();
    args.real.count = num_rows.data();
    EXPECT_EQ(device.run_with_norm(args).ids, there > 0 ? want.ids : std::vector<int32_t>(4, -1));
  }
}

TEST(NormRouterOnDeviceTest, ALogitOfZeroAndOneThatIsNotANumberArrive) {
  NormProblem p(RouterShape{128, 8, 2});
  for (auto& w : p.problem.gate_values) w = 0;
  for (int i = 0; i < 128; ++i) p.problem.gate_values[5 * 128 + i] = NAN;
  p.problem.bias_values.assign(8, 0.0f);
  Device device(p.problem);
  const NormDevice norm(p);
  EXPECT_EQ(device.run_with_norm(norm.args()).ids, (std::vector<int32_t>{0, 1}));
}

}  // namespace
}  // namespace sparrow::ops::cuda
