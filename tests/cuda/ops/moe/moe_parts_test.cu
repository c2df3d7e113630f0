// SPDX-License-Identifier: Apache-2.0
// Experts whose channels are summed in parts: ranks that hold some of the channels add up to the bits of one
// that holds all, for any number of rows.
#include <gtest/gtest.h>

#include <memory>

#include "cuda/ops/moe/moe_layer.cuh"
#include "ops/cuda/moe/moe_parts.h"

namespace sparrow::ops::cuda {
namespace {

constexpr int kParts = 8;

MoeShape rank_of(MoeShape shape, int ranks) {
  shape.inter /= ranks;
  return shape;
}

std::vector<float> run(Layer& layer, int rows, int parts) {
  layer.out.poison();
  layer.poison_workspace();
  std::vector<std::unique_ptr<Device<float>>> slots;
  MoeArgs args = layer.args(rows);
  args.out = nullptr;
  PartTree sums{.parts = parts};
  for (int s = 0; s < tree_slots(parts); ++s) {
    slots.push_back(std::make_unique<Device<float>>(size_t(rows) * layer.shape.hidden));
    slots.back()->poison();
    sums.slots[s] = slots.back()->data;
  }
  moe_in_parts(layer.shape, args, sums, nullptr);
  SPARROW_CUDA(cudaDeviceSynchronize());
  return slots[0]->download();
}

bool equal_bits(const std::vector<float>& a, const std::vector<float>& b, size_t count) {
  return std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

// One rank's channels of a layer.
std::unique_ptr<Layer> part_of(const Layer& whole, int ranks, int rank) {
  auto part = std::make_unique<Layer>(rank_of(whole.shape, ranks), whole.max_rows);
  const int hidden = whole.shape.hidden, all = whole.shape.inter, mine = part->shape.inter;
  const auto gate_up = whole.gate_up.download(), down = whole.down.download();
  std::vector<__nv_bfloat16> some;
  for (int e = 0; e <= whole.shape.num_experts; ++e) {
    const auto begin = gate_up.begin() + (int64_t{e} * 2 * all + int64_t{rank} * 2 * mine) * hidden;
    some.insert(some.end(), begin, begin + int64_t{2} * mine * hidden);
  }
  part->gate_up.upload(some);
  some.clear();
  for (int64_t row = 0; row < int64_t{whole.shape.num_experts + 1} * hidden; ++row) {
    const auto begin = down.begin() + row * all + int64_t{rank} * mine;
    some.insert(some.end(), begin, begin + mine);
  }
  part->down.upload(some);
  return part;
}

class MoeParts : public testing::TestWithParam<MoeShape> {};
// M3's parts have 384 channels, which the second product of many tokens holds.
INSTANTIATE_TEST_SUITE_P(Shapes, MoeParts,
                         testing::Values(MoeShape{128, 512, 8, 2}, MoeShape{1024, 3072, 4, 2},
                                         MoeShape{320, 1024, 0, 0}));

TEST_P(MoeParts, OfRanksAddUpToTheWhole) {
  constexpr int kRows = 900;
  Layer whole(GetParam(), kRows);
  for (const int rows : {1, 65, kRows}) {
    const std::vector<float> truth = run(whole, rows, kParts);
    for (const int ranks : {2, 4, 8}) {
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < ranks; ++r) sums.push_back(run(*part_of(whole, ranks, r), rows, kParts / ranks));
      for (int apart = 1; apart < ranks; apart *= 2)
        for (int r = 0; r < ranks; r += 2 * apart)
          for (size_t i = 0; i < truth.size(); ++i) sums[r][i] += sums[r + apart][i];
      EXPECT_TRUE(equal_bits(sums[0], truth, truth.size())) << ranks << " ranks, " << rows << " rows";
    }
  }
}

TEST_P(MoeParts, RowsHaveTheSameBitsInAnyNumber) {
  Layer layer(GetParam(), 900);
  const auto many = run(layer, 900, kParts);
  for (const int rows : {1, 2, 17, 64, 65, 129, 600})
    EXPECT_TRUE(equal_bits(many, run(layer, rows, kParts), size_t(rows) * layer.shape.hidden)) << rows;
}

TEST_P(MoeParts, AreTheSumUpToRounding) {
  Layer layer(GetParam(), 200);
  for (const int rows : {3, 200}) {
    std::vector<__nv_bfloat16> rounded;
    for (const float sum : run(layer, rows, kParts)) rounded.push_back(__float2bfloat16(sum));
    EXPECT_LT(layer.error(rows, rounded), kManyTolerance) << rows;
  }
}

TEST_P(MoeParts, RepeatToTheBit) {
  Layer layer(GetParam(), 300);
  const auto first = run(layer, 300, kParts);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(equal_bits(first, run(layer, 300, kParts), first.size()));
}

}  // namespace
}  // namespace sparrow::ops::cuda
