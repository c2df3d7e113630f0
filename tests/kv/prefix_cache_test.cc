// SPDX-License-Identifier: Apache-2.0
#include "kv/prefix_cache.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sparrow {
namespace {

std::vector<int32_t> iota(int64_t count, int32_t first = 0) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

std::vector<int32_t> concat(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Tokens with a table, whose full blocks can be published and looked up.
struct Text {
  Text(BlockPool& pool, PrefixCache& cache, std::vector<int32_t> tokens, std::string tenant = "",
       std::vector<MediaSpan> spans = {})
      : cache(cache), ids(std::move(tokens)), salt(std::move(tenant)), media(std::move(spans)), table(pool) {
    cache.extend_digests(content(), static_cast<int64_t>(ids.size()) / kBlockTokens, digests);
  }

  PrefixContent content() const { return {.salt = salt, .ids = ids, .media = media}; }

  std::vector<BlockId> publish() {
    EXPECT_TRUE(table.reserve(static_cast<int64_t>(ids.size())));
    for (size_t block = 0; block < digests.size(); ++block) {
      const BlockId known =
          cache.publish(content(), digests[block], static_cast<int64_t>(block), table.blocks());
      if (known != table.blocks()[block]) table.replace(static_cast<int64_t>(block), known);
    }
    return {table.blocks().begin(), table.blocks().end()};
  }

  // All but the last token, as a prompt is looked up.
  PrefixHit find() const { return find(static_cast<int64_t>(ids.size()) - 1); }
  PrefixHit find(int64_t max_tokens) const {
    PrefixHit hit;
    cache.find(content(), digests, max_tokens, hit);
    return hit;
  }

  PrefixCache& cache;
  std::vector<int32_t> ids;
  std::string salt;
  std::vector<MediaSpan> media;
  BlockTable table;
  std::vector<Digest> digests;
};

struct PrefixCacheTest : testing::TestWithParam<int> {
  BlockPool pool{8, std::nullopt, 1000};
  PrefixCache cache{pool, GetParam()};

  Text text(std::vector<int32_t> ids, std::string salt = "", std::vector<MediaSpan> media = {}) {
    return Text(pool, cache, std::move(ids), std::move(salt), std::move(media));
  }
};

// With 0 bytes every digest is the same, and only the comparison of what it stands for tells blocks apart.
INSTANTIATE_TEST_SUITE_P(DigestBytes, PrefixCacheTest, testing::Values(32, 0));

TEST_P(PrefixCacheTest, FindsTheFullBlocksThatTwoPromptsShare) {
  Text a = text(concat(iota(256), {1, 2, 3}));
  const std::vector<BlockId> blocks = a.publish();
  EXPECT_EQ(cache.num_known(), 2);  // not the third, which is not full
  const PrefixHit hit = text(concat(iota(256), iota(200, 7))).find();
  EXPECT_EQ(hit.blocks, (std::vector<BlockId>{blocks[0], blocks[1]}));
  EXPECT_EQ(hit.partial_tokens, 0);
  EXPECT_EQ(hit.num_tokens(), 256);
  EXPECT_EQ(text(concat(iota(128), iota(128, 9000))).find().blocks, (std::vector<BlockId>{blocks[0]}));
  EXPECT_EQ(text(iota(256, 9000)).find().num_tokens(), 0);
}

TEST_P(PrefixCacheTest, TheSameIdsAfterAnotherPrefixAreAnotherBlock) {
  Text a = text(concat(iota(128), iota(128, 500)));
  a.publish();
  EXPECT_EQ(text(concat(iota(128, 1), iota(128, 500))).find(256).num_tokens(), 0);
  EXPECT_EQ(text(iota(128, 500)).find(128).num_tokens(), 0);  // its second block is nobody's first
  Text b = text(concat(iota(128, 1), iota(128, 500)));
  EXPECT_NE(b.publish()[1], a.table.blocks()[1]);
  EXPECT_EQ(cache.num_known(), 4);
  EXPECT_EQ(text(b.ids).find(256).blocks[1], b.table.blocks()[1]);
  EXPECT_EQ(text(a.ids).find(256).blocks[1], a.table.blocks()[1]);
}

TEST_P(PrefixCacheTest, SaltsSeparateTenants) {
  Text a = text(iota(256), "alice");
  a.publish();
  EXPECT_EQ(text(iota(256), "bob").find(256).num_tokens(), 0);
  EXPECT_EQ(text(iota(256)).find(256).num_tokens(), 0);
  EXPECT_EQ(text(iota(200), "bob").find().num_tokens(), 0);  // nor in part
  EXPECT_EQ(text(iota(256), "alice").find(256).num_tokens(), 256);
  Text b = text(iota(256), "bob");
  EXPECT_NE(b.publish()[0], a.table.blocks()[0]);
}

TEST_P(PrefixCacheTest, PlaceholdersOfAnotherImageAreAnotherBlock) {
  const std::vector<int32_t> ids = concat(iota(100), std::vector<int32_t>(156, 77));
  const auto image = [](int64_t begin, uint8_t name) {
    return std::vector<MediaSpan>{{.begin = begin, .end = begin + 120, .digest = {name}}};
  };
  Text a = text(ids, "", image(100, 1));
  a.publish();
  EXPECT_EQ(text(ids, "", image(100, 1)).find(256).num_tokens(), 256);
  EXPECT_EQ(text(ids, "", image(100, 2)).find(256).num_tokens(), 0);
  EXPECT_EQ(text(ids, "", image(101, 1)).find(256).num_tokens(), 0);
  EXPECT_EQ(text(ids).find(256).num_tokens(), 0);
  EXPECT_EQ(text(ids).find(255).num_tokens(), 0);
  EXPECT_EQ(text(ids, "", image(130, 1)).find(256).num_tokens(), 0);
}

TEST_P(PrefixCacheTest, AHitMayEndInsideABlock) {
  Text a = text(iota(256));
  const std::vector<BlockId> blocks = a.publish();
  PrefixHit hit = text(iota(200)).find();
  EXPECT_EQ(hit.blocks, (std::vector<BlockId>{blocks[0]}));
  EXPECT_EQ(hit.partial_block, blocks[1]);
  EXPECT_EQ(hit.partial_tokens, 71);  // one token must be left to compute
  hit = text(iota(100)).find();
  EXPECT_EQ(hit.partial_block, blocks[0]);
  EXPECT_EQ(hit.num_tokens(), 99);
  EXPECT_EQ(text(iota(131)).find().num_tokens(), 130);
}

TEST_P(PrefixCacheTest, APromptThatIsWhollyKnownComputesItsLastTokenAgain) {
  Text a = text(iota(256));
  const std::vector<BlockId> blocks = a.publish();
  const PrefixHit hit = text(iota(256)).find();
  EXPECT_EQ(hit.blocks, (std::vector<BlockId>{blocks[0]}));
  EXPECT_EQ(hit.partial_block, blocks[1]);
  EXPECT_EQ(hit.partial_tokens, 127);
}

TEST_P(PrefixCacheTest, OneTokenHasNothingToLookUp) {
  Text a = text(iota(128));
  a.publish();
  EXPECT_EQ(text(iota(1)).find().num_tokens(), 0);
  EXPECT_EQ(text(iota(2)).find().num_tokens(), 1);
}

TEST_P(PrefixCacheTest, OfSeveralBlocksThatBeginAlikeTheLongestMatchIsTaken) {
  std::vector<Text> texts;
  for (const int64_t same : {20, 90, 40})
    texts.push_back(text(concat(iota(same), iota(128 - same, 7000 + 1000 * static_cast<int32_t>(same)))));
  for (Text& t : texts) t.publish();
  const PrefixHit hit = text(concat(iota(100), {-1, -2})).find();
  EXPECT_EQ(hit.partial_block, texts[1].table.blocks()[0]);
  EXPECT_EQ(hit.partial_tokens, 90);
}

TEST_P(PrefixCacheTest, AFewSharedTokensAreNotWorthACopyUnlessTheyAreAllThereIs) {
  Text a = text(iota(128));
  a.publish();
  EXPECT_EQ(text(concat(iota(15), iota(50, 900))).find().num_tokens(), 0);
  EXPECT_EQ(text(concat(iota(16), iota(50, 900))).find().num_tokens(), 16);
  EXPECT_EQ(text(iota(6)).find().num_tokens(), 5);
}

TEST_P(PrefixCacheTest, PublishingTheSameContentTwiceKeepsOneBlock) {
  Text a = text(iota(256)), b = text(iota(256));
  ASSERT_TRUE(a.table.reserve(256) && b.table.reserve(256));
  const std::vector<BlockId> blocks = a.publish();
  EXPECT_EQ(pool.num_in_use(), 4);
  EXPECT_EQ(b.publish(), blocks);
  EXPECT_EQ(pool.num_in_use(), 2);
  EXPECT_EQ(pool.num_owners(blocks[0]), 2);
}

TEST_P(PrefixCacheTest, BlocksOutliveTheirOwnersUntilThePoolNeedsThem) {
  {
    Text a = text(iota(384));
    a.publish();
  }
  EXPECT_EQ(pool.num_cached(), 3);
  EXPECT_EQ(text(iota(384)).find(384).num_tokens(), 384);
  BlockTable other(pool);
  ASSERT_TRUE(other.reserve(5 * 128));
  EXPECT_EQ(text(iota(384)).find(384).num_tokens(), 384);
  ASSERT_TRUE(other.reserve(6 * 128));  // takes the last block of the text
  EXPECT_EQ(text(iota(384)).find(384).num_tokens(), 256);
  EXPECT_EQ(cache.num_known(), 2);
  ASSERT_TRUE(other.reserve(8 * 128));
  EXPECT_EQ(text(iota(384)).find(384).num_tokens(), 0);
  EXPECT_EQ(text(iota(100)).find().num_tokens(), 0);
  EXPECT_EQ(cache.num_known(), 0);
}

TEST_P(PrefixCacheTest, AnEvictedBlockIsForgottenAndItsIdMeansItsNewContentOnly) {
  for (int32_t round = 0; round < 40; ++round) {  // five times the pool
    Text a = text(iota(256, round * 1000), round % 3 == 0 ? "salt" : "");
    a.publish();
    EXPECT_EQ(cache.num_known(), std::min(2 * (round + 1), 8));
    for (int32_t old = std::max(0, round - 8); old <= round; ++old)
      EXPECT_EQ(text(iota(256, old * 1000), old % 3 == 0 ? "salt" : "").find(256).num_tokens(),
                old > round - 4 ? 256 : 0)
          << "text " << old << " in round " << round;
  }
}

TEST_P(PrefixCacheTest, ATenantWhoseBlocksAreGoneFindsNothingOfTheNextOne) {
  for (int tenant = 0; tenant < 5; ++tenant) {
    Text a = text(iota(256), std::to_string(tenant));
    a.publish();
    for (int other = 0; other < 5; ++other)
      EXPECT_EQ(text(iota(256), std::to_string(other)).find(256).num_tokens(), other == tenant ? 256 : 0);
    a.table.clear();
    BlockTable everything(pool);
    ASSERT_TRUE(everything.reserve(8 * 128));
  }
  EXPECT_EQ(cache.num_known(), 0);
}

TEST(PrefixCache, DigestsDependOnSaltParentIdsAndMedia) {
  BlockPool pool(1);
  PrefixCache cache(pool);
  const auto last = [&](std::vector<int32_t> ids, std::string salt = "", std::vector<MediaSpan> media = {}) {
    return Text(pool, cache, std::move(ids), std::move(salt), std::move(media)).digests.back();
  };
  const Digest digest = last(iota(256));
  EXPECT_EQ(last(iota(256)), digest);
  EXPECT_NE(last(concat(iota(128, 1), iota(128, 128))), digest);
  EXPECT_NE(last(concat(iota(255), {0})), digest);
  EXPECT_NE(last(iota(256), "salt"), digest);
  EXPECT_NE(last(iota(256), "", {{.begin = 130, .end = 140, .digest = {}}}), digest);
}

TEST(PrefixCache, ANewCacheOverAnOldPoolStartsEmpty) {
  BlockPool pool(2);
  {
    PrefixCache cache(pool);
    Text a(pool, cache, iota(256));
    a.publish();
  }
  EXPECT_EQ(pool.num_free(), 2);
  PrefixCache cache(pool);
  Text b(pool, cache, iota(256));
  EXPECT_EQ(b.find().num_tokens(), 0);
  b.publish();
  EXPECT_EQ(cache.num_known(), 2);
}

}  // namespace
}  // namespace sparrow
