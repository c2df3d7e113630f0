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

void expect_counts(const BlockPool& pool, int in_use, int cached, int free) {
  EXPECT_EQ(pool.num_in_use(), in_use);
  EXPECT_EQ(pool.num_cached(), cached);
  EXPECT_EQ(pool.num_free(), free);
  EXPECT_EQ(pool.num_available(), cached + free);
  EXPECT_EQ(in_use + cached + free, pool.num_blocks());
}

TEST(BlockPool, HandsOutEveryBlockOnceAndThenIsFull) {
  BlockPool pool(5);
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{0, 1, 2, 3, 4}));
  expect_counts(pool, 5, 0, 0);
  EXPECT_FALSE(pool.take());
  pool.release(3);
  expect_counts(pool, 4, 0, 1);
  EXPECT_EQ(pool.take(), 3);
}

TEST(BlockPool, MayBeginAtAnyBlock) {
  BlockPool pool(3, std::nullopt, 40);
  EXPECT_EQ(pool.first_block(), 40);
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{40, 41, 42}));
  pool.keep(41);
  pool.release(41);
  pool.release(42);
  expect_counts(pool, 1, 1, 1);
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{42, 41})) << "the free one first";
}

TEST(BlockPoolDeathTest, ABlockOfAnotherPoolIsABug) {
  BlockPool pool(3, std::nullopt, 40);
  take_all(pool);
  for (const BlockId other : {0, 39, 43}) {
    EXPECT_DEATH(pool.share(other), "first_");
    EXPECT_DEATH(pool.release(other), "first_");
  }
}

TEST(BlockPool, ASeedShufflesTheOrderAndKeepsEveryBlock) {
  BlockPool pool(100, 7), same(100, 7), other(100, 8);
  std::vector<BlockId> blocks = take_all(pool);
  EXPECT_EQ(take_all(same), blocks);
  EXPECT_NE(take_all(other), blocks);
  EXPECT_FALSE(std::is_sorted(blocks.begin(), blocks.end()));
  EXPECT_EQ(std::set<BlockId>(blocks.begin(), blocks.end()).size(), 100u);
}

TEST(BlockPool, ASharedBlockIsFreeOnlyAfterItsLastOwnerReleasesIt) {
  BlockPool pool(2);
  const BlockId block = *pool.take();
  pool.share(block);
  pool.share(block);
  EXPECT_EQ(pool.num_owners(block), 3);
  for (int owners = 2; owners >= 0; --owners) {
    expect_counts(pool, 1, 0, 1);
    pool.release(block);
    EXPECT_EQ(pool.num_owners(block), owners);
  }
  expect_counts(pool, 0, 0, 2);
}

TEST(BlockPool, AKeptBlockIsCachedAfterItsLastOwnerAndCanBeSharedAgain) {
  BlockPool pool(2);
  const BlockId block = *pool.take();
  pool.keep(block);
  pool.share(block);
  pool.release(block);
  expect_counts(pool, 1, 0, 1);
  pool.release(block);
  expect_counts(pool, 0, 1, 1);
  pool.share(block);
  expect_counts(pool, 1, 0, 1);
  EXPECT_TRUE(pool.is_kept(block));
}

TEST(BlockPool, EvictsFreeBlocksFirstAndThenTheLongestReleased) {
  BlockPool pool(5);
  std::vector<BlockId> evicted;
  pool.on_evict([&](BlockId block) { evicted.push_back(block); });
  take_all(pool);
  for (const BlockId block : {0, 1, 2, 3}) pool.keep(block);
  for (const BlockId block : {2, 0, 4, 3, 1}) pool.release(block);
  pool.share(0);  // used again: now the latest, and the middle of the list is whole
  pool.release(0);
  EXPECT_EQ(pool.take(), 4);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{2, 3, 1, 0}));
  EXPECT_EQ(evicted, (std::vector<BlockId>{2, 3, 1, 0}));
  EXPECT_FALSE(pool.is_kept(2));
  pool.release(2);
  expect_counts(pool, 4, 0, 1);
}

TEST(BlockPool, KeepingNothingFreesWhatWasCachedAndLeavesWhatIsInUse) {
  BlockPool pool(4);
  take_all(pool);
  for (const BlockId block : {0, 1, 2}) pool.keep(block);
  for (const BlockId block : {0, 1}) pool.release(block);
  pool.keep_nothing();
  expect_counts(pool, 2, 0, 2);
  pool.release(2);
  expect_counts(pool, 1, 0, 3);
  EXPECT_EQ(take_all(pool).size(), 3u);
}

TEST(BlockPoolDeathTest, ReleasingOrSharingAFreeBlockIsABug) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(1), "owners");
  EXPECT_DEATH(pool.release(2), "check failed");
  EXPECT_DEATH(pool.share(1), "owners");
  EXPECT_DEATH(pool.keep(1), "owners");
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

// Nobody finds a block whose predecessor is gone.
TEST(BlockTable, TheLastBlockIsEvictedFirst) {
  BlockPool pool(3);
  {
    BlockTable table(pool);
    ASSERT_TRUE(table.reserve(3 * 128));
    for (const BlockId block : table.blocks()) pool.keep(block);
  }
  expect_counts(pool, 0, 3, 0);
  EXPECT_EQ(take_all(pool), (std::vector<BlockId>{2, 1, 0}));
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

TEST(BlockTable, AForkSharesBlocksUntilOneOfTheTwoWrites) {
  BlockPool pool(4);
  BlockTable table(pool);
  ASSERT_TRUE(table.reserve(200));
  EXPECT_FALSE(table.is_shared(1));
  BlockTable fork = table.fork(129);
  EXPECT_TRUE(std::ranges::equal(fork.blocks(), table.blocks()));
  expect_counts(pool, 2, 0, 2);
  EXPECT_TRUE(table.is_shared(1));

  EXPECT_EQ(fork.copy_on_write(1), (BlockCopy{1, 2}));
  EXPECT_EQ(fork.blocks()[1], 2);
  EXPECT_EQ(table.blocks()[1], 1);
  EXPECT_FALSE(table.is_shared(1));  // the other one writes in place
  EXPECT_FALSE(fork.is_shared(1));
  EXPECT_TRUE(fork.is_shared(0));
  expect_counts(pool, 3, 0, 1);
  table.clear();
  EXPECT_FALSE(fork.is_shared(0));
  expect_counts(pool, 2, 0, 2);
}

TEST(BlockTable, AForkSharesOnlyWhatHoldsTokens) {
  BlockPool pool(4);
  BlockTable table(pool);
  ASSERT_TRUE(table.reserve(300));
  EXPECT_EQ(table.fork(256).blocks().size(), 2u);
  EXPECT_EQ(table.fork(257).blocks().size(), 3u);
}

TEST(BlockTable, ACopyOnWriteWithoutAFreeBlockChangesNothing) {
  BlockPool pool(1);
  BlockTable table(pool);
  ASSERT_TRUE(table.reserve(1));
  BlockTable fork = table.fork(1);
  EXPECT_FALSE(fork.copy_on_write(0));
  EXPECT_EQ(fork.blocks()[0], 0);
  EXPECT_EQ(pool.num_owners(0), 2);
}

TEST(BlockTable, ReplacesABlockByOneOfTheSameContent) {
  BlockPool pool(3);
  BlockTable table(pool), other(pool);
  ASSERT_TRUE(table.reserve(1) && other.reserve(1));
  other.replace(0, table.blocks()[0]);
  EXPECT_EQ(pool.num_owners(table.blocks()[0]), 2);
  expect_counts(pool, 1, 0, 2);
}

TEST(BlockTable, TakesItsBlocksFromAnotherPoolOnceItHasNone) {
  BlockPool pool(2), other(2, std::nullopt, 2);
  BlockTable table(pool);
  EXPECT_TRUE(table.reserve(100));
  EXPECT_DEATH(table.set_pool(other), "empty");
  table.clear();
  table.set_pool(other);
  EXPECT_TRUE(table.reserve(100));
  EXPECT_EQ(table.blocks()[0], 2);
  expect_counts(pool, 0, 0, 2);
  expect_counts(other, 1, 0, 1);
}

}  // namespace
}  // namespace sparrow
