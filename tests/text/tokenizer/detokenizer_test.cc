// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "text/m3_tokens.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow {
namespace {

// Ids 0 to 255 are the bytes.
Tokenizer bytes_only() {
  return std::move(Tokenizer::parse(train_tokenizer("", 320).value())).value();
}

std::vector<std::string> pushed(const Tokenizer& tokenizer, std::string_view bytes) {
  Detokenizer stream(tokenizer);
  std::vector<std::string> out;
  for (const char c : bytes) {
    std::string text;
    EXPECT_TRUE(stream.push(static_cast<unsigned char>(c), text).ok());
    out.push_back(text);
  }
  std::string text;
  stream.finish(text);
  out.push_back(text);
  return out;
}

using Texts = std::vector<std::string>;

TEST(Detokenizer, CharacterComesOutWithItsLastByte) {
  const Tokenizer tokenizer = bytes_only();
  EXPECT_EQ(pushed(tokenizer,
                   "a\xF0\x9F\x98\x80"
                   "b"),
            (Texts{"a", "", "", "", "\xF0\x9F\x98\x80", "b", ""}));
}

TEST(Detokenizer, BrokenSequenceIsReplacedAsSoonAsItCannotBeCompleted) {
  const Tokenizer tokenizer = bytes_only();
  EXPECT_EQ(pushed(tokenizer,
                   "\xE2\x82"
                   "a"),
            (Texts{"", "",
                   "\xEF\xBF\xBD"
                   "a",
                   ""}));
  EXPECT_EQ(pushed(tokenizer, "\xFF"), (Texts{"\xEF\xBF\xBD", ""}));
  EXPECT_EQ(pushed(tokenizer, "\xE2\xE2\x82\xAC"), (Texts{"", "\xEF\xBF\xBD", "", "\xE2\x82\xAC", ""}));
}

TEST(Detokenizer, EndReplacesWhatStillWaits) {
  const Tokenizer tokenizer = bytes_only();
  EXPECT_EQ(pushed(tokenizer, "\xF0\x9F\x98"), (Texts{"", "", "", "\xEF\xBF\xBD"}));
}

TEST(Detokenizer, SkippedTokenBetweenTwoHalvesOfACharacterDoesNotPartThem) {
  const Tokenizer tokenizer = bytes_only();
  Detokenizer stream(tokenizer);
  std::string text;
  for (const int32_t id : {0xC3, *tokenizer.id_of(kM3Eos), 0xA9}) ASSERT_TRUE(stream.push(id, text).ok());
  EXPECT_EQ(text, "é");
}

TEST(Detokenizer, IdOutOfRangeIsAnErrorAndLeavesTheStreamUsable) {
  const Tokenizer tokenizer = bytes_only();
  Detokenizer stream(tokenizer);
  std::string text;
  ASSERT_TRUE(stream.push(0xC3, text).ok());
  EXPECT_FALSE(stream.push(tokenizer.vocab_size(), text).ok());
  EXPECT_FALSE(stream.push(-1, text).ok());
  ASSERT_TRUE(stream.push(0xA9, text).ok());
  EXPECT_EQ(text, "é");
}

TEST(Detokenizer, RandomIdsGiveTheTextOfDecodingThemAtOnce) {
  const Tokenizer tokenizer = bytes_only();
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> ids;
    for (uint32_t n = random() % 20; n > 0; --n) {
      constexpr uint8_t kInteresting[] = {0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC,
                                          0xF0, 0x9F, 0x98, 0x80, 0xED, 0xFF};
      ids.push_back(random() % 4
                        ? kInteresting[random() % 12]
                        : static_cast<int32_t>(random() % static_cast<uint32_t>(tokenizer.vocab_size())));
    }
    for (const bool skip : {false, true}) {
      Detokenizer stream(tokenizer, skip);
      std::string text;
      for (const int32_t id : ids) {
        ASSERT_TRUE(stream.push(id, text).ok());
        ASSERT_EQ(valid_utf8_prefix(text), text.size());
      }
      stream.finish(text);
      ASSERT_EQ(text, tokenizer.decode(ids, skip).value());
    }
  }
}

}  // namespace
}  // namespace sparrow
