// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/encode_cache.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/files/mapped_file.h"
#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "text/tokenizer/tokenizer_file.h"

namespace sparrow {
namespace {

Tokenizer load(const std::string& name) {
  const auto path = std::filesystem::path(SPARROW_GOLDEN_DIR) / "tokenizer" / (name + ".tokenizer.json");
  return std::move(Tokenizer::parse(read_text_file(path, size_t{64} << 20).value())).value();
}

// With the model's pattern and merges that show where words were cut: "\n" with a blank, 本 with "A".
Tokenizer cut_revealing() {
  JsonWriter vocab;
  vocab.begin_object();
  int id = 0;
  std::string alphabet[256];
  for (const uint32_t c : byte_level_alphabet()) {
    append_utf8(alphabet[id], c);
    vocab.key(alphabet[id]).integer(id);
    ++id;
  }
  JsonWriter merges;
  merges.begin_array();
  for (const auto& [left, right] : {std::pair{'\n', ' '}, {'\r', '\t'}, {'\xac', 'A'}, {'\xa5', 'B'}}) {
    const std::string& l = alphabet[static_cast<unsigned char>(left)];
    const std::string& r = alphabet[static_cast<unsigned char>(right)];
    vocab.key(l + r).integer(id++);
    merges.string(l + " " + r);
  }
  vocab.end_object();
  merges.end_array();
  JsonWriter pattern;
  pattern.string(kM3Pattern);
  const std::string json =
      strf(R"({{"pre_tokenizer":{{"type":"Split","pattern":{{"Regex":{}}},"behavior":"Isolated"}},)"
           R"("model":{{"type":"BPE","vocab":{},"merges":{}}}}})",
           pattern.text(), vocab.text(), merges.text());
  return std::move(Tokenizer::parse(json)).value();
}

// Words, blanks, scripts and tokens in an order that puts every kind of cut next to every other.
std::string random_text(std::mt19937& random, size_t bytes) {
  static constexpr std::string_view kPieces[] = {
      "the ",     "Cache",   " of ", "prefixes", "\n",   "\n\n", "   ",        " ",
      "\t",       "1234567", "!",    "//",       "'s",   "'LL",  "日本",       "AB",
      "CDEFGH",   "c",       "é",    "\u0301",   "]~b]", "[e~[", "<mm:think>", "]<]start of ",
      "video[>[", "привет",  "。",   "\u00a0",   "½",    "\xff"};
  std::string text;
  while (text.size() < bytes) text += kPieces[random() % std::size(kPieces)];
  return text;
}

TEST(EncodeCache, EveryTurnHasTheIdsOfAFreshEncode) {
  for (const char* name : {"m3", "cl100k", "gpt2", "other", "flags"}) {
    const Tokenizer tokenizer = load(name);
    std::mt19937 random(21);
    EncodeCache cache(tokenizer);
    std::string text = random_text(random, 4000);
    for (int turn = 0; turn < 120; ++turn) {
      // Sometimes the end changes before more comes, anywhere at all, also inside a character.
      if (random() % 2) text.resize(text.size() - random() % 400);
      if (random() % 8 == 0) text.resize(text.size() - random() % (text.size() / 2));
      text += random_text(random, random() % 600);
      ASSERT_EQ(cache.encode(text).value(), tokenizer.encode(text).value()) << name << ", turn " << turn;
    }
  }
}

// What stands before a long run can depend on how the run ends: no checkpoint may lie there.
std::string text_with_runs(std::mt19937& random, size_t bytes) {
  const std::string runs[] = {"\n" + std::string(90, ' '),
                              "日本" + std::string(90, 'A') + "!",
                              "é日" + std::string(90, 'B') + "\n",
                              std::string(90, ' ') + "x",
                              std::string(90, '1'),
                              "!\r" + std::string(90, '\t') + "-"};
  std::string text;
  while (text.size() < bytes)
    text += random_text(random, 1 + random() % 30) + runs[random() % std::size(runs)];
  return replace_invalid_utf8(text);
}

TEST(EncodeCache, CheckpointHoldsWhateverFollowsItsMargin) {
  for (const std::string name : {"m3", "cl100k", "gpt2", "other", "cut_revealing"}) {
    const Tokenizer tokenizer = name == "cut_revealing" ? cut_revealing() : load(name);
    const size_t margin = tokenizer.checkpoint_margin().value();
    std::mt19937 random(22);
    for (int round = 0; round < 150; ++round) {
      const std::string text = text_with_runs(random, 3000);
      std::vector<int32_t> ids;
      std::vector<EncodeCheckpoint> checkpoints;
      ASSERT_TRUE(tokenizer.encode_from(text, 0, Recognise::kAll, ids, &checkpoints).ok());
      while (!checkpoints.empty() && checkpoints.back().num_bytes + margin > text.size())
        checkpoints.pop_back();
      for (const EncodeCheckpoint& checkpoint : checkpoints)
        for (const char* end : {"", "a", "\n", " b", "日"}) {
          // The margin may end inside a character, which then reads differently too.
          const std::string next = replace_invalid_utf8(text.substr(0, checkpoint.num_bytes + margin) + end);
          std::vector<int32_t> resumed(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(checkpoint.num_ids));
          ASSERT_TRUE(
              tokenizer.encode_from(next, checkpoint.num_bytes, Recognise::kAll, resumed, nullptr).ok());
          ASSERT_EQ(resumed, tokenizer.encode(next).value())
              << name << ": " << text.substr(checkpoint.num_bytes - 40, 40) << "|"
              << next.substr(checkpoint.num_bytes);
        }
    }
  }
}

TEST(EncodeCache, NextTurnCostsItsNewPartOnly) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer);
  std::string text;
  while (text.size() < 1'000'000)
    text += "A long conversation about nothing in particular, with 42 numbers.\n";
  ASSERT_TRUE(cache.encode(text).ok());
  const uint64_t before = cache.encoded_bytes();
  EXPECT_EQ(before, text.size());
  text += "[e~[\n]~b]user\nOne more question?[e~[\n]~b]ai\n";
  ASSERT_EQ(cache.encode(text).value(), tokenizer.encode(text).value());
  EXPECT_LT(cache.encoded_bytes() - before, 1000u);
  const uint64_t after = cache.encoded_bytes();
  ASSERT_TRUE(cache.encode(text).ok());
  EXPECT_EQ(cache.encoded_bytes(), after) << "the same text again costs nothing";
}

TEST(EncodeCache, TextWithoutLettersOfAnyAlphabetIsReusedToo) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer);
  std::string text;
  while (text.size() < 100'000) text += "今天的天气很好,我们去公园吧。";
  ASSERT_TRUE(cache.encode(text).ok());
  const uint64_t before = cache.encoded_bytes();
  text += "再见。";
  ASSERT_EQ(cache.encode(text).value(), tokenizer.encode(text).value());
  EXPECT_LT(cache.encoded_bytes() - before, 1000u);
}

TEST(EncodeCache, SeveralConversationsKeepTheirPlaces) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer);
  std::mt19937 random(23);
  std::vector<std::string> texts;
  const std::string shared = random_text(random, 5000);
  for (int i = 0; i < 5; ++i) texts.push_back(shared + random_text(random, 20000));
  // What is not UTF-8 is not kept as it came, so only text can be recognised.
  for (std::string& text : texts) std::erase(text, '\xff');
  for (const std::string& text : texts) ASSERT_TRUE(cache.encode(text).ok());
  const uint64_t before = cache.encoded_bytes();
  for (std::string& text : texts) {
    text += "and more";
    ASSERT_EQ(cache.encode(text).value(), tokenizer.encode(text).value());
  }
  EXPECT_LT(cache.encoded_bytes() - before, 5000u);
}

TEST(EncodeCache, ASaltKnowsItsOwnTextsOnly) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer);
  std::mt19937 random(29);
  std::string text = random_text(random, 20'000);
  std::erase(text, '\xff');
  const auto newly_encoded = [&](std::string_view salt) {
    const uint64_t before = cache.encoded_bytes();
    EXPECT_EQ(cache.encode(text, salt).value(), tokenizer.encode(text).value());
    return cache.encoded_bytes() - before;
  };
  for (const char* salt : {"a", "b", ""}) {
    EXPECT_EQ(newly_encoded(salt), text.size()) << salt;
    EXPECT_EQ(newly_encoded(salt), 0u) << salt;
  }
  // What one of them goes on with is new to the others.
  text += " and more";
  EXPECT_LT(newly_encoded("a"), 5000u);
  text += " than that";
  EXPECT_LT(newly_encoded("b"), 5000u);
  EXPECT_EQ(newly_encoded("c"), text.size());
}

TEST(EncodeCache, BudgetIsKeptByForgettingTheOldest) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer, 400'000);
  std::string texts[20];
  for (int i = 0; i < 20; ++i) {
    while (texts[i].size() < 20'000) texts[i] += strf("conversation {} goes on. ", i);
    ASSERT_TRUE(cache.encode(texts[i]).ok());
  }
  const uint64_t before = cache.encoded_bytes();
  ASSERT_TRUE(cache.encode(texts[19]).ok());
  EXPECT_EQ(cache.encoded_bytes(), before);
  ASSERT_TRUE(cache.encode(texts[0]).ok());
  EXPECT_GE(cache.encoded_bytes(), before + texts[0].size());
}

TEST(EncodeCache, ThreadsMayShareOne) {
  const Tokenizer tokenizer = load("m3");
  EncodeCache cache(tokenizer);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t / 2));  // two threads each walk through the same texts
      std::string text = random_text(random, 3000);
      for (int i = 0; i < 30; ++i) {
        text += random_text(random, 300);
        wrong[t] += cache.encode(text).value() != tokenizer.encode(text).value();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

// Whoever only wants to know that a text is too long need not wait for all of it.
TEST(EncodeCache, StopsSoonAfterTheLimitAndRemembersNothing) {
  constexpr size_t kSlack = 1000;  // a few words
  std::mt19937 random(7);
  const Tokenizer tokenizers[] = {load("m3"), cut_revealing()};
  for (const Tokenizer& tokenizer : tokenizers) {
    const std::string text = random_text(random, 50'000);
    const std::vector<int32_t> all = tokenizer.encode(text).value();
    EXPECT_GT(tokenizer.min_ids(text.size()), 0u);
    EXPECT_LE(tokenizer.min_ids(text.size()), all.size());
    for (const size_t limit : {size_t{0}, size_t{1}, size_t{100}, all.size() - 1, all.size(), SIZE_MAX}) {
      EncodeCache cache(tokenizer);
      const std::vector<int32_t> ids = cache.encode(text, "", limit).value();
      ASSERT_LE(ids.size(), all.size());
      EXPECT_TRUE(std::equal(ids.begin(), ids.end(), all.begin()));
      if (all.size() <= limit) {
        EXPECT_EQ(ids.size(), all.size());
      } else {
        EXPECT_GT(ids.size(), limit);
        EXPECT_LE(ids.size(), limit + kSlack);
        EXPECT_EQ(cache.encoded_bytes(), 0u);
      }
      EXPECT_EQ(cache.encode(text).value(), all);
    }
  }
}

}  // namespace
}  // namespace sparrow
