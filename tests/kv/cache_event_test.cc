// SPDX-License-Identifier: Apache-2.0
#include "kv/cache_event.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sparrow {
namespace {

// What somebody knows of a cache who only hears its events.
struct Picture {
  struct Block {
    std::optional<Digest> parent;
    std::vector<int32_t> ids;
    std::string salt;
    std::vector<std::pair<int64_t, Digest>> media;
    bool operator==(const Block&) const = default;
  };
  std::map<Digest, Block> blocks;

  void apply(const std::vector<CacheEvent>& events) {
    for (const CacheEvent& event : events) {
      if (event.kind == CacheEvent::Kind::kCleared) blocks.clear();
      if (event.kind == CacheEvent::Kind::kStored) store(event);
      if (event.kind != CacheEvent::Kind::kRemoved) continue;
      for (const Digest& digest : event.digests) EXPECT_EQ(blocks.erase(digest), 1u);
    }
  }
  void store(const CacheEvent& event) {
    ASSERT_EQ(event.ids.size(), event.digests.size() * kBlockTokens);
    ASSERT_EQ(event.extras.size(), event.digests.size());
    for (size_t i = 0; i < event.digests.size(); ++i) {
      const auto ids = event.ids.begin() + static_cast<int64_t>(i) * kBlockTokens;
      Block block{.parent = i == 0 ? event.parent : event.digests[i - 1],
                  .ids = {ids, ids + kBlockTokens},
                  .salt = event.extras[i].salt};
      for (const MediaSpan& span : event.extras[i].media) block.media.emplace_back(span.begin, span.digest);
      EXPECT_TRUE(!block.parent || blocks.contains(*block.parent));
      EXPECT_TRUE(blocks.emplace(event.digests[i], block).second) << "stored twice";
    }
  }
};

struct CacheEvents : testing::Test {
  BlockPool pool{12, std::nullopt, 40};
  PrefixCache cache{pool};
  std::vector<CacheEvent> events;

  CacheEvents() { cache.record(events); }

  // Computes a sequence and lets it go; what is known of it is used again.
  void run(const PrefixContent& content) {
    std::vector<Digest> digests;
    const auto full = static_cast<int64_t>(content.ids.size()) / kBlockTokens;
    cache.extend_digests(content, full, digests);
    PrefixHit hit;
    cache.find(content, digests, static_cast<int64_t>(content.ids.size()), hit);
    BlockTable table(pool);
    for (const BlockId block : hit.blocks) table.append_shared(block);
    ASSERT_TRUE(table.reserve(full * kBlockTokens));
    for (int64_t block = static_cast<int64_t>(hit.blocks.size()); block < full; ++block)
      cache.publish(content, digests[block], block, table.blocks());
  }
};

TEST_F(CacheEvents, OneEventHoldsWhatComesInOneGo) {
  const std::vector<int32_t> ids(3 * kBlockTokens + 5, 7);
  run({.salt = "tenant", .ids = ids});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CacheEvent::Kind::kStored);
  EXPECT_EQ(events[0].digests.size(), 3u);
  EXPECT_FALSE(events[0].parent.has_value());
  EXPECT_EQ(events[0].ids, std::vector<int32_t>(3 * kBlockTokens, 7));
  EXPECT_EQ(events[0].extras[0].salt, "tenant");
  EXPECT_TRUE(events[0].extras[1].empty());

  const Digest last = std::exchange(events, {})[0].digests[2];
  std::vector<int32_t> longer(4 * kBlockTokens, 7);
  longer.back() = 8;
  run({.salt = "tenant", .ids = longer});
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].digests.size(), 1u);
  EXPECT_EQ(events[0].parent, last);
}

TEST_F(CacheEvents, MediaAreNamedInEveryBlockTheyLieIn) {
  const std::vector<int32_t> ids(3 * kBlockTokens, 1);
  const MediaSpan image{.begin = 100, .end = 300, .digest = {1, 2, 3}};
  run({.ids = ids, .media = {&image, 1}});
  ASSERT_EQ(events.size(), 1u);
  const std::vector<CacheEvent::Extra>& extras = events[0].extras;
  ASSERT_EQ(extras.size(), 3u);
  for (int64_t block = 0; block < 3; ++block) {
    ASSERT_EQ(extras[block].media.size(), 1u);
    EXPECT_EQ(extras[block].media[0].begin, 100 - block * kBlockTokens);
    EXPECT_EQ(extras[block].media[0].end, 300 - block * kBlockTokens);
    EXPECT_EQ(extras[block].media[0].digest, image.digest);
  }
}

// The pool holds 12 blocks and sequences have up to 8: most stores evict something.
TEST_F(CacheEvents, WhoHearsAllOfThemKnowsWhatTheCacheHolds) {
  std::mt19937_64 random(5);
  Picture heard;
  int64_t num_removed = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % (8 * kBlockTokens));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i / 128 + (random() % 400 == 0));
    const MediaSpan image{.begin = 50, .end = 51, .digest = {static_cast<uint8_t>(random() % 2)}};
    const bool has_image = random() % 4 == 0 && ids.size() > 51;
    run({.salt = random() % 3 == 0 ? "a" : "",
         .ids = ids,
         .media = has_image ? std::span(&image, 1) : std::span<const MediaSpan>()});
    for (const CacheEvent& event : events)
      if (event.kind == CacheEvent::Kind::kRemoved) num_removed += static_cast<int64_t>(event.digests.size());
    heard.apply(std::exchange(events, {}));
    std::vector<CacheEvent> all;
    cache.list(all);
    Picture now;
    now.apply(all);
    ASSERT_EQ(static_cast<int>(now.blocks.size()), cache.num_known());
    ASSERT_EQ(heard.blocks, now.blocks) << "round " << round;
  }
  EXPECT_GT(num_removed, 1000);
}

}  // namespace
}  // namespace sparrow
