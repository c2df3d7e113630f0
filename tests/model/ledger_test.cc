// SPDX-License-Identifier: Apache-2.0
// The ledger and the cuts behind it, against the arithmetic of the real M3.
#include "model/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "checkpoint/tensor_table.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kGiB = 1024.0 * 1024 * 1024;

ModelConfig m3(bool mxfp8 = false) {
  return parse_config(mxfp8 ? test::m3_mxfp8_config_json() : test::m3_config_json(), "").value();
}

double weight_gib(const ModelConfig& config, const Grid& grid) {
  return static_cast<double>(
             make_ledger(config, grid, DType::kBF16, DType::kBF16, /*vision=*/false).weight_bytes) /
         kGiB;
}

// Published sizes of the weights of one rank, text model only, and what a token of the whole instance takes
// of a rank's cache: where each keeps all index keys, and where a group's ranks share them.
TEST(Ledger, RanksOfTheRealModelHoldWhatIsPublished) {
  const struct {
    Grid grid;
    double bf16_gib, mxfp8_gib;
    int64_t token_bytes, shared_token_bytes;
  } kRows[] = {{{}, 793.9, 411.7, 137'472, 137'472},
               {{.tp = 2}, 397.1, 205.9, 76'032, 68'736},
               {{.tp = 4}, 198.7, 103.1, 45'312, 34'368},
               {{.tp = 8}, 99.6, 51.7, 45'312, 32'544},
               {{.tp = 4, .dp = 2}, 101.7, 53.1, 22'656, 17'184}};
  for (const auto& row : kRows) {
    SCOPED_TRACE(describe(row.grid));
    EXPECT_NEAR(weight_gib(m3(), row.grid), row.bf16_gib, 0.06);
    EXPECT_NEAR(weight_gib(m3(true), row.grid), row.mxfp8_gib, 0.06);
    // A token is in the cache of one group, on all its ranks.
    const auto token_bytes = [&](Device device) {
      const int shares = index_ranks(row.grid, device);
      return make_ledger(m3(), row.grid, DType::kBF16, DType::kBF16, false, shares).token_bytes() /
             row.grid.dp;
    };
    EXPECT_EQ(token_bytes(Device::kCuda), row.token_bytes);
    EXPECT_EQ(token_bytes(Device::kCpu), row.shared_token_bytes);
  }
}

// Whole experts are as many bytes as parts of all, and the ranks of a grid hold as much as each other.
TEST(Ledger, ExpertParallelRanksHoldAsMuch) {
  for (const Grid& grid : {Grid{.tp = 8}, Grid{.tp = 4, .dp = 2}, Grid{.tp = 2, .dp = 4}}) {
    Grid whole = grid;
    whole.expert_parallel = true;
    for (whole.rank = 0; whole.rank < grid.world(); ++whole.rank)
      EXPECT_EQ(weight_gib(m3(true), whole), weight_gib(m3(true), grid)) << describe(whole);
  }
}

TEST(Ledger, CacheBytesOfATokenAreExact) {
  const ModelConfig config = m3();
  const auto token_bytes = [&](int ranks, DType kv, DType index) {
    return make_ledger(config, {.tp = ranks}, kv, index, false).token_bytes();
  };
  EXPECT_EQ(token_bytes(1, DType::kBF16, DType::kBF16), 137472);
  EXPECT_EQ(token_bytes(1, DType::kF8E4M3, DType::kBF16), 76032);
  EXPECT_EQ(token_bytes(1, DType::kF8E4M3, DType::kF8E4M3), 68736);
  EXPECT_EQ(token_bytes(2, DType::kBF16, DType::kBF16), 76032);
  for (const int ranks : {4, 8}) EXPECT_EQ(token_bytes(ranks, DType::kBF16, DType::kBF16), 45312);
  EXPECT_EQ(token_bytes(8, DType::kBF16, DType::kF8E4M3), 38016);
}

TEST(Ledger, PartsOfARankAreThoseOfTheModel) {
  const Ledger ledger = make_ledger(m3(), {.tp = 8}, DType::kBF16, DType::kBF16, true);
  int64_t sum = 0;
  double routed = 0, vision = 0;
  for (const LedgerRow& row : ledger.weights) {
    sum += row.bytes;
    if (row.name == "routed experts") routed = static_cast<double>(row.bytes) / kGiB;
    if (row.name == "vision") vision = static_cast<double>(row.bytes) / kGiB;
  }
  EXPECT_EQ(sum, ledger.weight_bytes);
  EXPECT_NEAR(routed, 96.19, 0.01);
  EXPECT_NEAR(vision, 1.61, 0.01);  // replicated
}

constexpr Grid kGrids[] = {{},
                           {.tp = 2},
                           {.tp = 4},
                           {.tp = 8},
                           {.tp = 1, .dp = 2},
                           {.tp = 4, .dp = 2},
                           {.tp = 2, .dp = 4},
                           {.tp = 8, .expert_parallel = true},
                           {.tp = 4, .dp = 2, .expert_parallel = true},
                           {.tp = 8, .dp = 2, .expert_parallel = true}};

// Each row and column of a split tensor has exactly one owner, in each group or among all, or every rank has
// all of it, or KV heads are shared by as many ranks each.
TEST(Sharding, RanksCoverEveryTensorOnce) {
  const ModelConfig config = m3(true);
  const std::vector<TensorRow> rows = tensor_table(config);
  for (Grid grid : kGrids) {
    ASSERT_TRUE(validate(config, grid).ok()) << validate(config, grid).error().message;
    for (const TensorRow& row : rows) {
      const TensorSpec& spec = row.spec;
      std::map<int64_t, int> edges;  // how many more ranks hold what follows
      int64_t extent = 0;
      for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank) {
        const ShardRange range = shard_of(config, grid, row);
        if (range.empty()) continue;
        extent = spec.shape[static_cast<size_t>(range.axis)];
        ASSERT_TRUE(0 <= range.begin && range.begin < range.end && range.end <= extent) << spec.name;
        ++edges[range.begin], --edges[range.end];
      }
      const bool is_expert = row.part == LedgerPart::kRoutedExperts || row.part == LedgerPart::kSharedExperts;
      const int expected = is_expert                      ? 1
                           : row.cut == TensorCut::kWhole ? grid.world()
                           : row.cut == TensorCut::kKvHeads
                               ? grid.dp * std::max(1, grid.tp / config.num_kv_heads)
                               : grid.dp;
      ASSERT_EQ(edges.begin()->first, 0);
      ASSERT_EQ(edges.rbegin()->first, extent) << spec.name << " on " << describe(grid);
      int holders = 0;
      for (const auto& [at, change] : edges) {
        holders += change;
        ASSERT_EQ(holders, at == extent ? 0 : expected) << spec.name << " on " << describe(grid);
      }
    }
  }
}

TEST(Sharding, WholeExpertsAreNeighboursAndTheSharedOneIsCut) {
  const ModelConfig config = m3();
  const Grid grid{.tp = 4, .dp = 2, .expert_parallel = true, .rank = 5};
  EXPECT_EQ(experts_of(config, grid).first, 80);
  EXPECT_EQ(experts_of(config, grid).count, 16);
  EXPECT_EQ(experts_of(config, {.tp = 4, .dp = 2, .rank = 5}).count, 128);
  for (const TensorRow& row : tensor_table(config)) {
    const ShardRange range = shard_of(config, grid, row);
    if (row.part == LedgerPart::kRoutedExperts) {
      ASSERT_EQ(range.end - range.begin, row.expert >= 80 && row.expert < 96 ? row.spec.shape[0] : 0);
    } else if (row.part == LedgerPart::kSharedExperts && row.cut == TensorCut::kRows) {
      ASSERT_TRUE(range.begin == 5 * 384 && range.end == 6 * 384);
    }
  }
}

TEST(Sharding, KvHeadsAreReplicatedBeyondTheirNumber) {
  const ModelConfig config = m3();
  EXPECT_EQ(kv_heads_per_rank(config, {.tp = 2}), 2);
  EXPECT_EQ(kv_heads_per_rank(config, {.tp = 8}), 1);
  const std::vector<int> expected = {0, 0, 1, 1, 2, 2, 3, 3};
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(first_kv_head(config, {.tp = 8, .rank = rank}), expected[rank]);
  const std::vector<TensorRow> rows = tensor_table(config);
  const auto k = std::ranges::find(rows, TensorRole::kK, &TensorRow::role);
  const ShardRange range = shard_of(config, {.tp = 8, .rank = 5}, *k);
  EXPECT_EQ(range.begin, 256);
  EXPECT_EQ(range.end, 384);
}

std::string refusal(const ModelConfig& config, const Grid& grid) {
  const Status status = validate(config, grid);
  return status.ok() ? "" : status.error().message;
}

TEST(Sharding, WhatDoesNotDivideIsRefusedWithWhatWouldDo) {
  EXPECT_EQ(refusal(m3(), {.tp = 8, .rank = 7}), "");
  EXPECT_THAT(refusal(m3(), {.tp = 3}),
              AllOf(HasSubstr("num_attention_heads 64"), HasSubstr("2 GPUs: TP2; 4 GPUs: TP4")));
  EXPECT_THAT(
      refusal(m3(), {.tp = 16}),
      AllOf(HasSubstr("TP16"), HasSubstr("16 GPUs: TP8 x DP2, expert-parallel or TP4 x DP4, expert")));
  EXPECT_THAT(refusal(m3(), {.tp = 8, .dp = 2}), HasSubstr("--enable-expert-parallel"));
  EXPECT_THAT(refusal(m3(), {.tp = 2, .dp = 3}), HasSubstr("4 GPUs: TP4; 8 GPUs: TP8 or TP4 x DP2"));
  EXPECT_THAT(refusal(m3(), {.tp = 1, .dp = 3, .expert_parallel = true}), HasSubstr("3 ranks"));
  EXPECT_THAT(refusal(m3(), {.tp = 8, .rank = 8}), HasSubstr("rank 8 of 8"));
  EXPECT_THAT(refusal(m3(), {.tp = 0}), HasSubstr("1 GPU: TP1"));
  EXPECT_THAT(refusal(m3(), {.tp = 8, .dp = 128, .expert_parallel = true}), HasSubstr("64 GPUs: TP8 x DP8"));
}

TEST(Sharding, GridsOfAModelAreListed) {
  const auto grids = [](int ranks) {
    std::string all;
    for (const Grid& grid : supported_grids(m3(true), ranks))
      all += (all.empty() ? "" : "; ") + describe(grid);
    return all;
  };
  EXPECT_EQ(grids(1), "TP1");
  EXPECT_EQ(grids(2), "TP2");
  EXPECT_EQ(grids(3), "");
  EXPECT_EQ(grids(4), "TP4");
  EXPECT_EQ(grids(8), "TP8; TP4 x DP2");
  EXPECT_EQ(grids(12), "");
  EXPECT_EQ(grids(16), "TP8 x DP2, expert-parallel; TP4 x DP4, expert-parallel");
  EXPECT_EQ(grids(0), "");
  for (int ranks = 1; ranks <= 64; ++ranks)
    for (const Grid& grid : supported_grids(m3(true), ranks)) {
      EXPECT_EQ(grid.world(), ranks);
      EXPECT_TRUE(validate(m3(true), grid).ok());
    }
}

}  // namespace
}  // namespace sparrow
