// SPDX-License-Identifier: Apache-2.0
// The ledger and the cuts behind it, against the arithmetic of the real M3.
#include "model/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/tensor_table.h"
#include "support/m3_config.h"

namespace sparrow {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

ModelConfig m3(bool mxfp8 = false) {
  return parse_config(mxfp8 ? test::m3_mxfp8_config_json() : test::m3_config_json(), "").value();
}

double weight_gib(const ModelConfig& config, int ranks) {
  return static_cast<double>(
             make_ledger(config, {.size = ranks}, DType::kBF16, DType::kBF16, /*vision=*/false)
                 .weight_bytes) /
         kGiB;
}

// Published sizes of the weights of one rank, text model only.
TEST(Ledger, WeightsOfTheRealModelAgreeToATenthOfAPercent) {
  EXPECT_NEAR(weight_gib(m3(), 1), 793.90, 0.79);
  EXPECT_NEAR(weight_gib(m3(), 4), 198.66, 0.19);
  EXPECT_NEAR(weight_gib(m3(), 8), 99.59, 0.09);
  EXPECT_NEAR(weight_gib(m3(), 16), 50.05, 0.05);
  EXPECT_NEAR(weight_gib(m3(true), 1), 411.65, 0.41);
  EXPECT_NEAR(weight_gib(m3(true), 4), 103.07, 0.10);
  EXPECT_NEAR(weight_gib(m3(true), 8), 51.71, 0.05);
}

TEST(Ledger, CacheBytesOfATokenAreExact) {
  const ModelConfig config = m3();
  const auto token_bytes = [&](int ranks, DType kv, DType index) {
    return make_ledger(config, {.size = ranks}, kv, index, false).token_bytes();
  };
  EXPECT_EQ(token_bytes(1, DType::kBF16, DType::kBF16), 137472);
  EXPECT_EQ(token_bytes(1, DType::kF8E4M3, DType::kBF16), 76032);
  EXPECT_EQ(token_bytes(1, DType::kF8E4M3, DType::kF8E4M3), 68736);
  EXPECT_EQ(token_bytes(2, DType::kBF16, DType::kBF16), 76032);
  for (const int ranks : {4, 8, 16}) EXPECT_EQ(token_bytes(ranks, DType::kBF16, DType::kBF16), 45312);
  EXPECT_EQ(token_bytes(8, DType::kBF16, DType::kF8E4M3), 38016);
}

TEST(Ledger, PartsOfARankAreThoseOfTheModel) {
  const Ledger ledger = make_ledger(m3(), {.size = 8}, DType::kBF16, DType::kBF16, true);
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

// Each row and column of a split tensor has exactly one owner, or every rank has all of it.
TEST(Sharding, RanksCoverEveryTensorOnce) {
  const ModelConfig config = m3(true);
  for (const int size : {1, 2, 4, 8, 16})
    for (const TensorRow& row : tensor_table(config)) {
      const TensorSpec& spec = row.spec;
      int64_t covered = 0, extent = 0;
      for (int rank = 0; rank < size; ++rank) {
        const ShardRange range = shard_of(config, {size, rank}, row);
        extent = spec.shape[static_cast<size_t>(range.axis)];
        ASSERT_LE(0, range.begin);
        ASSERT_LT(range.begin, range.end) << spec.name;
        ASSERT_LE(range.end, extent) << spec.name;
        covered += range.end - range.begin;
      }
      ASSERT_EQ(covered % extent, 0) << spec.name << " over " << size;
    }
}

TEST(Sharding, KvHeadsAreReplicatedBeyondTheirNumber) {
  const ModelConfig config = m3();
  EXPECT_EQ(kv_heads_per_rank(config, 2), 2);
  EXPECT_EQ(kv_heads_per_rank(config, 8), 1);
  const std::vector<int> expected = {0, 0, 1, 1, 2, 2, 3, 3};
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(first_kv_head(config, {8, rank}), expected[rank]);
  const std::vector<TensorRow> rows = tensor_table(config);
  const auto k = std::ranges::find(rows, TensorRole::kK, &TensorRow::role);
  const ShardRange range = shard_of(config, {8, 5}, *k);
  EXPECT_EQ(range.begin, 256);
  EXPECT_EQ(range.end, 384);
}

TEST(Sharding, WhatDoesNotDivideIsRefusedByName) {
  EXPECT_TRUE(validate(m3(), {8, 7}).ok());
  EXPECT_NE(validate(m3(), {3, 0}).error().message.find("num_attention_heads 64"), std::string::npos);
  EXPECT_FALSE(validate(m3(), {8, 8}).ok());
  EXPECT_FALSE(validate(m3(), {0, 0}).ok());
}

}  // namespace
}  // namespace sparrow
