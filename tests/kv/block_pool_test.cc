// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kv/block_table.h"

namespace sparrow {
namespace {

std::vector<BlockId> take_all(BlockPool& pool) {
  std::vector<BlockId> blocks;
  while (const auto block = pool.take()) blocks.push_back(*block);
  return blocks;
}

TEST(BlockPool, HandsOutEveryBlockOnceAndThenIsFull) {
  BlockPool pool(5);
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_FALSE(pool.take());
  pool.release(3);
  EXPECT_EQ(pool.take(), 3);
}

TEST(BlockPool, ASeedShufflesTheOrderAndKeepsEveryBlock) {
  BlockPool pool(100, 7), same(100, 7), other(100, 8);
  std::vector<BlockId> blocks = take_all(pool);
  EXPECT_EQ(take_all(same), blocks);
  EXPECT_NE(take_all(other), blocks);
  EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
  EXPECT_EQ(std::set<BlockId>(blocks.begin(), blocks.end()).size(), 100u);
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(1), "in_use_");
  EXPECT_DEATH(pool.release(2), "check failed");
}

TEST(BlockTable, TakesAsManyBlocksAsTokensNeed) {
  BlockPool pool(4);
  BlockTable table(pool);
  for (const auto& [tokens, blocks] : {std::pair{0, 0}, {1, 1}, {127, 1}, {128, 1}, {129, 2}, {512, 4}}) {
    EXPECT_TRUE(table.reserve(tokens));
    EXPECT_EQ(table.blocks().size(), static_cast<size_t>(blocks)) << tokens << " tokens";
  }
  EXPECT_FALSE(table.reserve(513));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockTable, GivesItsBlocksBackWhenItDies) {
  BlockPool pool(3);
  {
    BlockTable table(pool);
    ASSERT_TRUE(table.reserve(300));
    BlockTable moved = std::move(table);
    EXPECT_EQ(pool.num_free(), 0);
  }
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(BlockTable, SlotsFollowThePhysicalBlocks) {
  BlockPool pool(8, 3);
  BlockTable table(pool);
  ASSERT_TRUE(table.reserve(400));
  EXPECT_EQ(table.slot(0), table.blocks()[0] * 128);
  EXPECT_EQ(table.slot(127), table.blocks()[0] * 128 + 127);
  EXPECT_EQ(table.slot(128), table.blocks()[1] * 128);
  EXPECT_EQ(table.slot(399), table.blocks()[3] * 128 + 15);
}

}  // namespace
}  // namespace sparrow
