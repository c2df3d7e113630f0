// SPDX-License-Identifier: Apache-2.0
// Sums in parts: what several ranks compute of a product, added up in the tree, has the bits of the product
// of all columns, for every instruction set, format and number of rows.
#include <algorithm>
#include <functional>
#include <numeric>

#include "ops/mlp_cases.h"

namespace sparrow::ops {
namespace {

constexpr int kParts = 8;
constexpr SwigluParams kSwiglu;

struct Types {
  MatrixFormat weight;
  DType activation;
};
constexpr Types kTypes[] = {{MatrixFormat::kBF16, DType::kBF16},
                            {MatrixFormat::kF32, DType::kF32},
                            {MatrixFormat::kMxfp8, DType::kBF16},
                            {MatrixFormat::kMxfp4, DType::kBF16}};

// Of a part, in columns: less than a vector, no multiple of one, of several blocks of k.
std::vector<int64_t> part_columns(MatrixFormat format) {
  if (is_mx(format)) return {32, 96, 1056};
  return {3, 8, 48, 384, 1100};
}

std::vector<CpuIsa> all_isas() {
  std::vector<CpuIsa> isas = vector_isas();
  isas.push_back(CpuIsa::kScalar);
  return isas;
}

Tensor columns_of(const Tensor& x, int64_t first, int64_t count) {
  Tensor part = x;
  part.data = static_cast<char*>(x.data) + first * static_cast<int64_t>(size_of(x.dtype));
  part.shape[1] = count;
  return part;
}
Weight columns_of(const Weight& w, int64_t first, int64_t count) {
  const int64_t per = values_per_element(w.format());
  Weight part{columns_of(w.values, first / per, count / per), w.scales};
  if (!w.scales.empty()) part.scales = columns_of(w.scales, first / kScaleGroup, count / kScaleGroup);
  return part;
}
Weight rows_of(const Weight& w, int64_t first, int64_t count) {
  return {w.values.rows_at(first, count), w.scales.empty() ? w.scales : w.scales.rows_at(first, count)};
}
// A rank's channels.
MlpWeights channels_of(const MlpWeights& mlp, int64_t first, int64_t count) {
  return {rows_of(mlp.gate, first, count), rows_of(mlp.up, first, count), columns_of(mlp.down, first, count)};
}

// ((0 + 1) + (2 + 3)) + ... of the ranks' results.
Owned sum_ranks(int first, int count, const std::function<Owned(int)>& rank) {
  if (count == 1) return rank(first);
  Owned sum = sum_ranks(first, count / 2, rank);
  const Owned rest = sum_ranks(first + count / 2, count / 2, rank);
  for (int64_t i = 0; i < sum.t.numel(); ++i) sum.t.as<float>()[i] += rest.t.as<float>()[i];
  return sum;
}

Owned product(CpuIsa isa, const Tensor& x, const Weight& weight, int parts, int threads) {
  Machine machine(isa, threads);
  Owned out(DType::kF32, x.rows(), weight.out());
  const Projection projection{&weight, out.t};
  linear(machine.exec, x, {&projection, 1}, parts);
  return out;
}

TEST(SumParts, OfAProductAreThoseOfItsRanks) {
  for (const Types types : kTypes)
    for (const int64_t columns : part_columns(types.weight)) {
      std::mt19937 rng(50);
      constexpr int64_t kOutputs = 45;
      const OwnedWeight weight = random_weight(rng, types.weight, kOutputs, kParts * columns);
      const Owned x = random_tensor(rng, types.activation, 530, kParts * columns);
      for (const CpuIsa isa : all_isas())
        for (const int64_t rows : {1, 3, 20, 100, 530}) {
          if (isa == CpuIsa::kScalar && rows > 3) continue;
          const Owned want = product(isa, x.t.rows_at(0, rows), weight.w, kParts, 2);
          for (const int ranks : {2, 4, 8}) {
            const int64_t mine = kParts * columns / ranks;
            const Owned got = sum_ranks(0, ranks, [&](int rank) {
              return product(isa, columns_of(x.t.rows_at(0, rows), rank * mine, mine),
                             columns_of(weight.w, rank * mine, mine), kParts / ranks, 1 + rank % 2);
            });
            ASSERT_TRUE(same_rows(got, 0, want, 0, rows))
                << name_of(isa) << " " << name_of(types.weight) << " " << columns << " columns of a part, "
                << ranks << " ranks, " << rows << " rows";
          }
          // Rows alone have the bits of rows together.
          ASSERT_TRUE(
              same_rows(product(isa, x.t.rows_at(rows - 1, 1), weight.w, kParts, 1), 0, want, rows - 1, 1));
        }
    }
}

TEST(SumParts, AreTheProductUpToRounding) {
  std::mt19937 rng(51);
  const OwnedWeight weight = random_weight(rng, MatrixFormat::kF32, 33, 8 * 40);
  const Owned x = random_tensor(rng, DType::kF32, 100, 8 * 40);
  Owned want(DType::kF32, 100, 33);
  const Projection projection{&weight.w, want.t};
  reference::linear(x.t, {&projection, 1});
  for (const CpuIsa isa : all_isas())
    for (const int parts : {1, 2, 4, 8})
      EXPECT_TRUE(near(product(isa, x.t, weight.w, parts, 2).t, want.t, 1e-4f, 1e-5f)) << name_of(isa);
}

struct Layer {
  static constexpr int kExperts = 6, kTopK = 3;
  std::vector<OwnedMlp> experts;
  OwnedMlp shared;
  Owned x, ids, weights;

  Layer(Types types, int64_t rows, int64_t routed, int64_t shared_channels) {
    std::mt19937 rng(52);
    constexpr int64_t kColumns = 96;
    for (int e = 0; e < kExperts; ++e) experts.push_back(random_mlp(rng, types.weight, kColumns, routed));
    shared = random_mlp(rng, types.weight, kColumns, shared_channels);
    x = random_tensor(rng, types.activation, rows, kColumns);
    ids = Owned(DType::kI32, rows, kTopK);
    weights = Owned(DType::kF32, rows, kTopK);
    std::vector<int32_t> order(kExperts);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t r = 0; r < rows; ++r) {
      std::shuffle(order.begin(), order.end(), rng);
      std::sort(order.begin(), order.begin() + kTopK);
      std::copy_n(order.begin(), kTopK, ids.t.row<int32_t>(r));
      for (int k = 0; k < kTopK; ++k) weights.t.row<float>(r)[k] = 0.2f + 0.1f * static_cast<float>(k);
    }
  }

  // Of one rank: its channels of every expert, or every expert whose number says so and channels of the
  // shared one.
  Owned run(CpuIsa isa, int64_t rows, int rank, int ranks, int parts, bool whole_experts = false) const {
    const auto mine = [&](const MlpWeights& mlp) {
      const int64_t count = mlp.gate.out() / ranks;
      return channels_of(mlp, rank * count, count);
    };
    std::vector<MlpWeights> views;
    for (int e = 0; e < kExperts; ++e) {
      const MlpWeights& all = experts[static_cast<size_t>(e)].w;
      views.push_back(!whole_experts ? mine(all) : e * ranks / kExperts == rank ? all : MlpWeights{});
    }
    Machine machine(isa, 1 + rank % 3);
    Owned out(DType::kF32, rows, x.t.cols());
    moe(machine.exec, x.t.rows_at(0, rows), ids.t.rows_at(0, rows), weights.t.rows_at(0, rows), views,
        mine(shared.w), 2.0f, kSwiglu, out.t, parts);
    return out;
  }
};

TEST(SumParts, OfExpertsAreThoseOfTheirRanks) {
  for (const Types types : kTypes)
    for (const int64_t columns : {8, 32, 96}) {
      if (is_mx(types.weight) && columns % 32 != 0) continue;
      const Layer layer(types, 150, kParts * columns, 2 * kParts * columns);
      for (const CpuIsa isa : all_isas())
        for (const int64_t rows : {1, 7, 150}) {
          if (isa == CpuIsa::kScalar && (rows > 1 || columns > 32)) continue;
          const Owned want = layer.run(isa, rows, 0, 1, kParts);
          for (const int ranks : {2, 4, 8}) {
            const Owned got = sum_ranks(
                0, ranks, [&](int rank) { return layer.run(isa, rows, rank, ranks, kParts / ranks); });
            ASSERT_TRUE(same_rows(got, 0, want, 0, rows))
                << name_of(isa) << " " << name_of(types.weight) << " " << columns << " channels of a part, "
                << ranks << " ranks, " << rows << " rows";
          }
        }
    }
}

// Whole experts on a rank: another order, the same sum.
TEST(SumParts, ExpertsThatAreElsewhereAreLeftOut) {
  const Layer layer({MatrixFormat::kF32, DType::kF32}, 20, 64, 64);
  for (const CpuIsa isa : all_isas()) {
    const Owned want = layer.run(isa, 20, 0, 1, kParts);
    const Owned got = sum_ranks(0, 2, [&](int rank) { return layer.run(isa, 20, rank, 2, 1, true); });
    EXPECT_TRUE(near(got.t, want.t, 1e-4f, 1e-4f)) << name_of(isa);
  }
}

}  // namespace
}  // namespace sparrow::ops
