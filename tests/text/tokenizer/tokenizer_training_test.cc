// SPDX-License-Identifier: Apache-2.0
#include "text/synthetic/tokenizer_training.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/m3_tokens.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {
namespace {

const std::string kCorpus =
    "The cat sat on the mat. The cat sat on the hat. The rat sat on the cat.\n"
    "]~b]user\n]~b]user\n<mm:think> [e~[ <mm:think> [e~[ ]<]minimax[>[<tool_call> ]<]minimax[>[<tool_call>\n";

Tokenizer train(const std::string& corpus, int vocab_size) {
  return std::move(Tokenizer::parse(train_tokenizer(corpus, vocab_size).value(), trained_tokenizer_config()))
      .value();
}

TEST(TokenizerTraining, AddedTokensEndTheVocabularyAtTheModelsOffsets) {
  for (const int size : {320, 512, 200064}) {
    const Tokenizer tokenizer = train(kCorpus, size);
    for (size_t i = 0; i < kM3AddedTokens.size(); ++i)
      EXPECT_EQ(tokenizer.id_of(kM3AddedTokens[i]), size - 64 + static_cast<int>(i)) << size;
    EXPECT_EQ(tokenizer.vocab_size(), size - 3);
    EXPECT_EQ(tokenizer.bos(), size - 64 + 34);
    EXPECT_EQ(tokenizer.eos(), size - 64 + 20);
    EXPECT_EQ(tokenizer.unk(), size - 64 + 21);
    EXPECT_FALSE(tokenizer.is_special(*tokenizer.id_of("<mm:think>")));
    EXPECT_TRUE(tokenizer.is_special(*tokenizer.id_of("[e~[")));
  }
}

TEST(TokenizerTraining, BytesComeFirstInTheirOrder) {
  const Tokenizer tokenizer = train(kCorpus, 512);
  for (int byte = 0; byte < 256; ++byte)
    EXPECT_EQ(tokenizer.bytes_of(byte).value(), std::string(1, static_cast<char>(byte)));
}

TEST(TokenizerTraining, FrequentWordsBecomeOneToken) {
  const Tokenizer tokenizer = train(kCorpus, 512);
  EXPECT_EQ(tokenizer.encode(" cat").value().size(), 1u);
  EXPECT_EQ(tokenizer.encode(" the").value().size(), 1u);
  EXPECT_GT(tokenizer.encode(" elephant").value().size(), 1u);
}

TEST(TokenizerTraining, NoMergeSpellsAnAddedToken) {
  const Tokenizer tokenizer = train(kCorpus, 512);
  for (int id = 256; id < 512 - 64; ++id)
    for (const std::string_view token : kM3AddedTokens) EXPECT_NE(tokenizer.bytes_of(id).value(), token);
}

TEST(TokenizerTraining, MostFrequentPairIsMergedFirstAndOfEqualsTheOneWithLowerIds) {
  const Tokenizer tokenizer = train("xyxyxy\nababab ab", 320 + 2);
  EXPECT_EQ(tokenizer.bytes_of(256).value(), "ab");
  EXPECT_EQ(tokenizer.bytes_of(257).value(), "xy");
}

TEST(TokenizerTraining, SameCorpusGivesTheSameBytes) {
  EXPECT_EQ(train_tokenizer(kCorpus, 400).value(), train_tokenizer(kCorpus, 400).value());
}

// Pairs of words stand where a corpus has run out of pairs; they are said, never read.
TEST(TokenizerTraining, SpareIdsBecomePhrasesThatNoTextIsCutInto) {
  const int size = 256 + 64 + 105;
  const auto filled = train_tokenizer(kCorpus, size, SpareIds::kPhrases).value();
  EXPECT_EQ(filled, train_tokenizer(kCorpus, size, SpareIds::kPhrases).value());
  const Tokenizer tokenizer = Tokenizer::parse(filled, trained_tokenizer_config()).value();
  std::vector<std::string> phrases;
  for (int id = 0; id < size - 3; ++id) {
    const std::string_view text = tokenizer.bytes_of(id).value();
    EXPECT_FALSE(text.empty()) << id;
    if (text.find_last_of(' ') > 0 && text.find_last_of(' ') != text.npos && id < size - 64)
      phrases.emplace_back(text);
  }
  EXPECT_THAT(phrases, ::testing::Contains(" sat the"));
  std::string all;
  for (const std::string& phrase : phrases) all += phrase;
  for (const int32_t id : tokenizer.encode(all).value())
    EXPECT_EQ(tokenizer.bytes_of(id)->find_last_of(' '), 0u);
  EXPECT_EQ(train(kCorpus, size).bytes_of(size - 65).value(), "") << "unused unless asked for";
}

TEST(TokenizerTraining, TextComesBack) {
  const Tokenizer tokenizer = train(kCorpus, 512);
  const std::string text = "The <mm:think>cat\n\n  naïve 日本 😀]~b]";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text).value()).value(), text);
}

TEST(TokenizerTraining, TooFewIdsAreAnErrorThatNamesTheSmallestNumber) {
  const auto trained = train_tokenizer(kCorpus, 319);
  ASSERT_FALSE(trained.ok());
  EXPECT_THAT(trained.error().message, ::testing::HasSubstr("at least 320, got 319"));
}

}  // namespace
}  // namespace sparrow
