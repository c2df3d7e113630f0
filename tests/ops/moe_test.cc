// SPDX-License-Identifier: Apache-2.0
// mlp and moe against the plain definition, and the independence of rows.
#include <algorithm>
#include <numeric>

#include "ops/mlp_cases.h"

namespace sparrow::ops {
namespace {

constexpr SwigluParams kSwiglu;

// Of a row's largest output. A hidden value next to a rounding boundary may round the other way in bf16, one
// part in 256 of one of many terms; in f32 only the order of the sums differs.
float tolerance(DType activation) {
  return activation == DType::kBF16 ? 2e-3f : 1e-5f;
}

::testing::AssertionResult close_rows(const Tensor& got, const Tensor& want, float share) {
  for (int64_t r = 0; r < want.rows(); ++r) {
    float largest = 0;
    for (int64_t c = 0; c < want.cols(); ++c) largest = std::max(largest, std::fabs(want.row<float>(r)[c]));
    const auto result = near(got.rows_at(r, 1), want.rows_at(r, 1), 0.0f, share * largest);
    if (!result) return ::testing::AssertionFailure() << "row " << r << " " << result.message();
  }
  return ::testing::AssertionSuccess();
}

struct Types {
  MatrixFormat weight;
  DType activation;
};
constexpr Types kTypes[] = {{MatrixFormat::kBF16, DType::kBF16},  {MatrixFormat::kMxfp8, DType::kBF16},
                            {MatrixFormat::kMxfp4, DType::kBF16}, {MatrixFormat::kF32, DType::kF32},
                            {MatrixFormat::kF32, DType::kBF16},   {MatrixFormat::kBF16, DType::kF32}};

TEST(Mlp, IsTheDefinition) {
  for (const Types types : kTypes) {
    std::mt19937 rng(30);
    const OwnedMlp mlp_weights = random_mlp(rng, types.weight, 96, 160);
    const Owned x = random_tensor(rng, types.activation, 37, 96);
    Owned want(DType::kF32, 37, 96);
    reference::mlp(x.t, mlp_weights.w, kSwiglu, want.t);
    for (const CpuIsa isa : vector_isas()) {
      Machine machine(isa);
      Owned got(DType::kF32, 37, 96);
      mlp(machine.exec, x.t, mlp_weights.w, kSwiglu, got.t);
      EXPECT_TRUE(close_rows(got.t, want.t, tolerance(types.activation))) << name_of(isa);
    }
  }
}

TEST(Mlp, ClampsAndKeepsNaN) {
  // One column: gate and up are the weights times 1, down passes hidden channel 0 on.
  const auto evaluate = [](CpuIsa isa, float gate, float up) {
    float g[1] = {gate}, u[1] = {up}, d[1] = {1}, one[1] = {1}, y[1] = {0};
    const auto matrix = [](float* v) { return Weight{Tensor(v, DType::kF32, {1, 1}), {}}; };
    const MlpWeights weights{matrix(g), matrix(u), matrix(d)};
    Machine machine(isa, 1);
    mlp(machine.exec, Tensor(one, DType::kF32, {1, 1}), weights, kSwiglu, Tensor(y, DType::kF32, {1, 1}));
    return y[0];
  };
  const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
  std::vector<CpuIsa> isas = vector_isas();
  isas.push_back(CpuIsa::kScalar);
  for (const CpuIsa isa : isas) {
    EXPECT_NEAR(evaluate(isa, 1, 2), 3 * sigmoid(1.702), 1e-6) << name_of(isa);
    EXPECT_NEAR(evaluate(isa, 100, 100), 8 * 7 * sigmoid(1.702 * 7), 1e-4) << name_of(isa);
    EXPECT_NEAR(evaluate(isa, 7, -100), -6 * 7 * sigmoid(1.702 * 7), 1e-4) << name_of(isa);
    EXPECT_NEAR(evaluate(isa, -3, 1), 2 * -3 * sigmoid(-1.702 * 3), 1e-6) << name_of(isa);
    EXPECT_NEAR(evaluate(isa, -3e38f, 1), 0.0, 1e-30) << name_of(isa);
    EXPECT_TRUE(std::isnan(evaluate(isa, NAN, 1))) << name_of(isa);
    EXPECT_TRUE(std::isnan(evaluate(isa, 1, NAN))) << name_of(isa);
  }
}

// Experts, and picks that leave some of them without rows.
struct MoeCase {
  std::vector<OwnedMlp> experts;
  std::vector<MlpWeights> views;
  OwnedMlp shared;
  Owned x, ids, weights;
};

MoeCase make_case(Types types, int64_t rows, int num_experts, int64_t columns = 96, int64_t hidden = 64) {
  std::mt19937 rng(31);
  MoeCase c;
  for (int e = 0; e < num_experts; ++e) {
    c.experts.push_back(random_mlp(rng, types.weight, columns, hidden));
    c.views.push_back(c.experts.back().w);
  }
  c.shared = random_mlp(rng, types.weight, columns, hidden + 32);
  c.x = random_tensor(rng, types.activation, rows, columns);
  constexpr int kTopK = 4;
  c.ids = Owned(DType::kI32, rows, kTopK);
  c.weights = Owned(DType::kF32, rows, kTopK);
  std::vector<int32_t> order(static_cast<size_t>(num_experts - 1));  // the last expert is never picked
  std::iota(order.begin(), order.end(), 0);
  for (int64_t r = 0; r < rows; ++r) {
    std::shuffle(order.begin(), order.end(), rng);
    std::sort(order.begin(), order.begin() + kTopK);
    for (int k = 0; k < kTopK; ++k) {
      c.ids.t.row<int32_t>(r)[k] = order[static_cast<size_t>(k)];
      c.weights.t.row<float>(r)[k] = 0.1f + 0.1f * static_cast<float>(k);
    }
  }
  return c;
}

Owned run_moe(const MoeCase& c, CpuIsa isa, int threads, int64_t first, int64_t count, DType type) {
  Machine machine(isa, threads);
  Owned out(type, count, c.x.t.cols());
  moe(machine.exec, c.x.t.rows_at(first, count), c.ids.t.rows_at(first, count),
      c.weights.t.rows_at(first, count), c.views, c.shared.w, 2.0f, kSwiglu, out.t);
  return out;
}

TEST(Moe, IsTheWeightedSumOfItsExperts) {
  for (const Types types : kTypes) {
    const MoeCase c = make_case(types, 45, 9);
    const Owned want = run_moe(c, CpuIsa::kScalar, 1, 0, 45, DType::kF32);
    for (const CpuIsa isa : vector_isas()) {
      const Owned got = run_moe(c, isa, 2, 0, 45, DType::kF32);
      EXPECT_TRUE(close_rows(got.t, want.t, tolerance(types.activation))) << name_of(isa);
    }
  }
}

TEST(Moe, ReferenceIsTheSumOfMlps) {
  const MoeCase c = make_case({MatrixFormat::kF32, DType::kF32}, 3, 6);
  const Owned got = run_moe(c, CpuIsa::kScalar, 1, 0, 3, DType::kF32);
  Machine machine(CpuIsa::kScalar, 1);
  for (int64_t r = 0; r < 3; ++r) {
    std::vector<double> sum(96, 0.0);
    const auto add_expert = [&](const MlpWeights& expert, float factor) {
      Owned y(DType::kF32, 1, 96);
      mlp(machine.exec, c.x.t.rows_at(r, 1), expert, kSwiglu, y.t);
      for (size_t i = 0; i < sum.size(); ++i)
        sum[i] += static_cast<double>(factor) * static_cast<double>(y.t.row<float>(0)[i]);
    };
    for (int k = 0; k < 4; ++k)
      add_expert(c.views[static_cast<size_t>(c.ids.t.row<int32_t>(r)[k])],
                 c.weights.t.row<float>(r)[k] * 2.0f);
    add_expert(c.shared.w, 1.0f);
    for (int i = 0; i < 96; ++i) EXPECT_NEAR(got.t.row<float>(r)[i], sum[static_cast<size_t>(i)], 1e-4);
  }
}

TEST(Moe, RowsAreBitExactInAnyBatchOnAnyNumberOfThreads) {
  for (const Types types : kTypes) {
    // Few experts for many rows: groups pass the sizes at which kernels change their walk.
    const MoeCase c = make_case(types, 700, 6);
    for (const CpuIsa isa : vector_isas()) {
      const Owned all = run_moe(c, isa, 2, 0, 700, DType::kBF16);
      for (const int threads : {1, 3}) {
        const Owned again = run_moe(c, isa, threads, 0, 700, DType::kBF16);
        ASSERT_TRUE(same_rows(again, 0, all, 0, 700)) << name_of(isa) << " threads " << threads;
      }
      for (const int64_t count : {1, 2, 17, 100})
        for (const int64_t first : {int64_t{0}, int64_t{333}, 700 - count}) {
          const Owned some = run_moe(c, isa, 2, first, count, DType::kBF16);
          ASSERT_TRUE(same_rows(some, 0, all, first, count))
              << name_of(isa) << " " << count << " from " << first;
        }
    }
  }
}

TEST(Moe, GroupsTakenInBatchesGiveTheSameBits) {
  // Five uses of each row: more packed rows than one batch of groups holds.
  const MoeCase c = make_case({MatrixFormat::kBF16, DType::kBF16}, 1100, 8, 32, 32);
  for (const CpuIsa isa : vector_isas()) {
    const Owned all = run_moe(c, isa, 2, 0, 1100, DType::kF32);
    for (const int64_t first : {0, 500, 1099}) {
      const Owned one = run_moe(c, isa, 2, first, 1, DType::kF32);
      ASSERT_TRUE(same_rows(one, 0, all, first, 1)) << name_of(isa);
    }
  }
}

TEST(Moe, NaNStaysInItsRow) {
  MoeCase c = make_case({MatrixFormat::kBF16, DType::kBF16}, 20, 7);
  for (const CpuIsa isa : vector_isas()) {
    const Owned clean = run_moe(c, isa, 2, 0, 20, DType::kF32);
    const Owned x = copy_of(c.x);
    reference::store(c.x.t, 4 * 96 + 1, NAN);
    const Owned dirty = run_moe(c, isa, 2, 0, 20, DType::kF32);
    c.x = copy_of(x);
    EXPECT_TRUE(std::isnan(dirty.t.row<float>(4)[0]));
    EXPECT_TRUE(same_rows(clean, 0, dirty, 0, 4));
    EXPECT_TRUE(same_rows(clean, 5, dirty, 5, 15));
  }
}

}  // namespace
}  // namespace sparrow::ops
