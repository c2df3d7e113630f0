// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <unordered_map>

namespace sparrow {
namespace {

using ::testing::ElementsAre;

void store(WordCache& cache, std::string_view word, const std::vector<int32_t>& ids) {
  cache.store(word, WordCache::key_of(word), ids);
}

std::vector<int32_t> looked_up(const WordCache& cache, std::string_view word) {
  std::vector<int32_t> ids;
  const bool found = cache.lookup(word, WordCache::key_of(word), ids);
  EXPECT_EQ(found, !ids.empty());
  return ids;
}

TEST(WordCache, WordsOfEverySizeComeBack) {
  for (size_t size = 1; size <= 30; ++size) {
    WordCache cache;
    const std::string word(size, 'w');
    EXPECT_THAT(looked_up(cache, word), ElementsAre());
    const std::vector<int32_t> ids = {static_cast<int32_t>(size), 7};
    store(cache, word, ids);
    EXPECT_EQ(looked_up(cache, word), ids);
  }
}

TEST(WordCache, WordsThatDifferInOneByteAnywhereAreDifferent) {
  for (size_t size = 1; size <= 30; ++size)
    for (size_t at = 0; at < size; ++at) {
      WordCache cache;
      std::string word(size, 'w');
      store(cache, word, std::vector<int32_t>{1});
      word[at] = 'v';
      EXPECT_THAT(looked_up(cache, word), ElementsAre()) << size << " " << at;
    }
}

TEST(WordCache, WordsThatDifferInSizeOnlyAreDifferent) {
  WordCache cache;
  for (int32_t size = 1; size <= 30; ++size)
    store(cache, std::string(static_cast<size_t>(size), '\0'), std::vector<int32_t>{size});
  for (int32_t size = 1; size <= 30; ++size) {
    const auto ids = looked_up(cache, std::string(static_cast<size_t>(size), '\0'));
    EXPECT_TRUE(ids.empty() || ids == std::vector<int32_t>{size}) << size;
  }
}

TEST(WordCache, LongWordsAndLongAnswersAreNotKept) {
  WordCache cache;
  store(cache, std::string(31, 'w'), std::vector<int32_t>{1});
  store(cache, "word", std::vector<int32_t>(9, 1));
  EXPECT_THAT(looked_up(cache, std::string(31, 'w')), ElementsAre());
  EXPECT_THAT(looked_up(cache, "word"), ElementsAre());
}

TEST(WordCache, FullCacheGivesRightAnswersOrNone) {
  WordCache cache;
  std::mt19937 random(9);
  std::unordered_map<std::string, int32_t> truth;
  int found = 0;
  for (int32_t i = 0; i < 200000; ++i) {
    std::string word;
    for (uint32_t n = 1 + random() % 20; n > 0; --n) word += static_cast<char>('a' + random() % 4);
    const auto [entry, is_new] = truth.try_emplace(word, i);
    const auto ids = looked_up(cache, word);
    if (!ids.empty()) {
      ASSERT_THAT(ids, ElementsAre(entry->second));
      ++found;
    }
    store(cache, word, std::vector<int32_t>{entry->second});
  }
  EXPECT_GT(found, 10000);
}

// The definition: of all pairs the one with the lowest rank is merged, the leftmost of those, until none is
// left.
std::vector<int32_t> merged_by_definition(std::vector<int32_t> symbols,
                                          const std::vector<Bpe::Merge>& merges) {
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i)
      for (size_t rank = 0; rank < best; ++rank)
        if (merges[rank].left == symbols[i] && merges[rank].right == symbols[i + 1]) best = rank, at = i;
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

// Random merges of two letters, in an order that also ranks pairs before their parts.
std::vector<Bpe::Merge> random_merges(std::mt19937& random) {
  std::vector<std::string> tokens = {"a", "b"};
  const auto id = [&](size_t token) { return token < 2 ? "ab"[token] : static_cast<int32_t>(254 + token); };
  std::vector<Bpe::Merge> merges;
  while (merges.size() < 24) {
    const size_t left = random() % tokens.size();
    // Pairs of one token with itself overlap in a row of three: there the order inside a rank shows.
    const size_t right = random() % 3 ? random() % tokens.size() : left;
    const std::string text = tokens[left] + tokens[right];
    size_t merged = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), text) - tokens.begin());
    if (merged == tokens.size()) tokens.push_back(text);
    const bool known = std::any_of(merges.begin(), merges.end(), [&](const Bpe::Merge& m) {
      return m.left == id(left) && m.right == id(right);
    });
    if (!known) merges.push_back({id(left), id(right), id(merged)});
  }
  std::shuffle(merges.begin() + static_cast<ptrdiff_t>(random() % merges.size()), merges.end(), random);
  return merges;
}

TEST(Bpe, ShortAndLongWordsAreMergedByTheDefinition) {
  std::array<int32_t, 256> bytes;
  for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  std::mt19937 random(31);
  for (int round = 0; round < 2000; ++round) {
    const std::vector<Bpe::Merge> merges = random_merges(random);
    std::string word;
    for (uint32_t n = random() % 2 ? 1 + random() % 128 : 129 + random() % 150; n > 0; --n)
      word += "ab"[random() % 2];
    std::vector<int32_t> ids;
    Bpe(bytes, merges).encode(word, ids);
    ASSERT_EQ(ids, merged_by_definition({word.begin(), word.end()}, merges)) << word;
  }
}

TEST(Bpe, PairsOfOneRankGoFromLeftToRightHoweverTheyCameUp) {
  std::array<int32_t, 256> bytes;
  for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  // The right one of the two pairs (300, 300) of "efcdcd" is there first.
  const std::vector<Bpe::Merge> merges = {{'c', 'd', 300}, {'e', 'f', 300}, {300, 300, 301}};
  for (const size_t size : {0u, 200u}) {
    std::vector<int32_t> ids, expected(size, 'z');
    Bpe(bytes, merges).encode(std::string(size, 'z') + "efcdcd", ids);
    expected.insert(expected.end(), {301, 300});
    EXPECT_EQ(ids, expected) << size;
  }
}

TEST(Bpe, OfTwoMergesOfOnePairTheLaterOneCounts) {
  std::array<int32_t, 256> bytes;
  for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = i;
  const std::vector<Bpe::Merge> merges = {{'a', 'b', 300}, {'b', 'c', 301}, {'a', 'b', 302}};
  std::vector<int32_t> ids;
  Bpe(bytes, merges).encode("ab", ids);
  Bpe(bytes, merges).encode("abc", ids);
  EXPECT_THAT(ids, ElementsAre(302, 'a', 301));
}

TEST(Bpe, WithoutMergesEveryByteIsAToken) {
  std::array<int32_t, 256> bytes;
  for (int32_t i = 0; i < 256; ++i) bytes[static_cast<size_t>(i)] = 255 - i;
  std::vector<int32_t> ids;
  Bpe(bytes, {}).encode("ab", ids);
  EXPECT_THAT(ids, ElementsAre(255 - 'a', 255 - 'b'));
}

}  // namespace
}  // namespace sparrow
