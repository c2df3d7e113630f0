// SPDX-License-Identifier: Apache-2.0
// The experts on a GPU against a plain reference with float64 sums, and what moe() promises beside its
// values: the same bits in every run, in a graph, over any workspace, and for a row in any company.
#include "ops/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/ops/moe/moe_layer.cuh"

namespace sparrow::ops::cuda {
namespace {

class MoeTest : public testing::TestWithParam<MoeShape> {};

INSTANTIATE_TEST_SUITE_P(Shapes, MoeTest,
                         testing::Values(kTiny, kSmall, kRank, kOdd, kTinyMlp, kRankMlp, kOddMlp),
                         [](const auto& info) {
                           const MoeShape& s = info.param;
                           return "h" + std::to_string(s.hidden) + "_i" + std::to_string(s.inter) + "_e" +
                                  std::to_string(s.num_experts) + "_k" + std::to_string(s.top_k);
                         });

TEST_P(MoeTest, AgreesWithTheReferenceForAnyNumberOfRows) {
  Layer layer(GetParam(), 1000);
  for (const int rows : {1, 2, 3, 7, 8, 9, 16, 17, 32, 33, 63, 64, 65, 127, 128, 129, 255, 1000}) {
    layer.set_inputs(rows, rows % 2 == 0 ? Routing::kRandom : Routing::kFewExperts);
    EXPECT_LT(layer.error(rows, layer.run(rows)), tolerance(layer.shape, rows)) << rows << " rows";
  }
}

TEST_P(MoeTest, AgreesWithTheReferenceWhenEveryRowPicksTheSameExpert) {
  if (GetParam().num_experts == 0) GTEST_SKIP() << "nothing is routed";
  Layer layer(GetParam(), 600);
  layer.set_inputs(5, Routing::kOneExpert);
  for (const int rows : {5, 17, 64, 129, 257, 600})
    EXPECT_LT(layer.error(rows, layer.run(rows)), tolerance(layer.shape, rows)) << rows << " rows";
}

TEST_P(MoeTest, RepeatsItsBits) {
  Layer layer(GetParam(), 300);
  for (const int rows : {1, 16, 64, 300}) {
    const auto first = layer.run(rows);
    for (int i = 0; i < 5; ++i)
      EXPECT_TRUE(same_bits(first, layer.run(rows), size_t(rows) * layer.shape.hidden)) << rows << " rows";
  }
}

TEST_P(MoeTest, WritesNothingButItsRows) {
  Layer layer(GetParam(), 140);
  for (const int rows : {1, 7, 33, 64, 65, 130}) {
    const auto result = layer.run(rows);
    for (size_t i = size_t(rows) * layer.shape.hidden; i < result.size(); ++i)
      ASSERT_EQ(__bfloat16_as_ushort(result[i]), 0xffff) << rows << " rows, element " << i;
  }
}

// A row alone has the same bits as in company, as long as the same family serves both.
TEST_P(MoeTest, ARowDoesNotDependOnTheOtherRows) {
  if (GetParam().num_experts == 0) GTEST_SKIP() << "a dense MLP of few rows is cut by its number of rows";
  Layer layer(GetParam(), 900);
  const auto few = layer.run(64);
  for (const int rows : {1, 2, 5, 8, 9, 16, 17, 40})
    EXPECT_TRUE(same_bits(few, layer.run(rows), size_t(rows) * layer.shape.hidden)) << rows << " of 64 rows";
  const auto many = layer.run(900);
  for (const int rows : {129, 257, 600})
    EXPECT_TRUE(same_bits(many, layer.run(rows), size_t(rows) * layer.shape.hidden))
        << rows << " of 900 rows";
}

TEST_P(MoeTest, BatchInvariantRowsHaveTheSameBitsInAnyNumber) {
  Layer layer(GetParam(), 900);
  const auto many = layer.run(900, /*batch_invariant=*/true);
  for (const int rows : {1, 2, 17, 64, 65, 129, 600})
    EXPECT_TRUE(same_bits(many, layer.run(rows, true), size_t(rows) * layer.shape.hidden))
        << rows << " of 900 rows";
}

TEST_P(MoeTest, AGraphFollowsChangedInputs) {
  Layer layer(GetParam(), 200);
  cudaStream_t stream;
  SPARROW_CUDA(cudaStreamCreate(&stream));
  for (const int rows : {1, 24, 64, 200}) {
    layer.run(rows);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    SPARROW_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 3; ++i) moe(layer.shape, layer.args(rows), stream);
    SPARROW_CUDA(cudaStreamEndCapture(stream, &graph));
    SPARROW_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (const uint32_t seed : {11u, 12u, 13u}) {
      layer.set_inputs(seed, seed == 12 ? Routing::kOneExpert : Routing::kRandom);
      const auto eager = layer.run(rows);
      layer.out.poison();
      layer.poison_workspace();
      SPARROW_CUDA(cudaDeviceSynchronize());
      SPARROW_CUDA(cudaGraphLaunch(exec, stream));
      SPARROW_CUDA(cudaStreamSynchronize(stream));
      EXPECT_TRUE(same_bits(eager, layer.out.download(), size_t(rows) * layer.shape.hidden))
          << rows << " rows";
    }
    SPARROW_CUDA(cudaGraphExecDestroy(exec));
    SPARROW_CUDA(cudaGraphDestroy(graph));
  }
  SPARROW_CUDA(cudaStreamDestroy(stream));
}

TEST_P(MoeTest, RowsThatArePaddingDisturbNobody) {
  if (GetParam().num_experts == 0) GTEST_SKIP() << "nothing is routed";
  Layer layer(GetParam(), 150);
  for (const int rows : {16, 64, 150}) {
    layer.set_inputs(21, Routing::kRandom);
    const auto clean = layer.run(rows);
    const int real = rows * 3 / 4, top_k = layer.shape.top_k;
    // Not a number everywhere, ids from anywhere.
    SPARROW_CUDA(cudaMemset(layer.x.data + size_t(real) * layer.shape.hidden, 0xff,
                            size_t(rows - real) * layer.shape.hidden * 2));
    std::vector<int32_t> ids = layer.ids.download();
    for (int i = real * top_k; i < rows * top_k; ++i) ids[i] = i % 3 == 0 ? -1 : i % 3 == 1 ? 0x7fffffff : 1;
    layer.ids.upload(ids);
    EXPECT_TRUE(same_bits(clean, layer.run(rows), size_t(real) * layer.shape.hidden)) << rows << " rows";
  }
}

// As expert-parallel ranks do: whole experts, of which a row may have none here, and a shared one apart.
TEST_P(MoeTest, TheSharedExpertMayBeRunApart) {
  const MoeShape& shape = GetParam();
  if (shape.num_experts == 0) GTEST_SKIP() << "nothing is routed";
  Layer layer(shape, 300);
  Device<__nv_bfloat16> shared(layer.out.count);
  std::vector<int32_t> ids = layer.ids.download();
  for (size_t i = 0; i < ids.size(); ++i)
    if (i % 3 == 0 || i < static_cast<size_t>(shape.top_k)) ids[i] = -1;
  layer.ids.upload(ids);
  for (const int rows : {1, 17, 300}) {
    layer.out.poison();
    layer.poison_workspace();
    MoeArgs args = layer.args(rows);
    const int experts = shape.num_experts;
    args.gate_up = bf16_matrix(layer.gate_up.data + size_t(experts) * 2 * shape.inter * shape.hidden,
                               2 * shape.inter, shape.hidden);
    args.down = bf16_matrix(layer.down.data + size_t(experts) * shape.hidden * shape.inter, shape.hidden,
                            shape.inter);
    args.out = shared.data;
    moe({shape.hidden, shape.inter, 0, 0}, args, nullptr);
    args = layer.args(rows);
    args.gate_up.rows -= 2 * shape.inter, args.down.rows -= shape.hidden;
    args.shared = shared.data;
    moe(shape, args, nullptr);
    EXPECT_LT(layer.error(rows, layer.out.download()), kManyTolerance) << rows << " rows";
  }
}

TEST(Moe, NoRowsIsNothingToDo) {
  Layer layer(kTiny, 4);
  const auto result = layer.run(0);
  for (const __nv_bfloat16 v : result) EXPECT_EQ(__bfloat16_as_ushort(v), 0xffff);
}

TEST(Moe, ManyExpertsOfWhichMostAreNotHit) {
  Layer layer({512, 128, 256, 8}, 2000);
  for (const int rows : {1, 8, 32, 33, 2000})
    EXPECT_LT(layer.error(rows, layer.run(rows)), tolerance(layer.shape, rows)) << rows;
}

// Every CTA has several tiles of both products, some of them past the last weight row.
TEST(Moe, MoreTilesThanSms) {
  Layer layer({2304, 192, 8, 4}, 4500);
  for (const int rows : {1500, 4500})
    EXPECT_LT(layer.error(rows, layer.run(rows)), tolerance(layer.shape, rows)) << rows;
}

}  // namespace
}  // namespace sparrow::ops::cuda
