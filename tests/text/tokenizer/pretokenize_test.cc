// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/pretokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace sparrow {
namespace {

using ::testing::ElementsAre;

const std::string kO200k(kM3Pattern);
std::string no_slash() {
  std::string pattern = kO200k;
  return pattern.replace(pattern.find("[\\r\\n/]*"), 8, "[\\r\\n]*");
}
const std::string kCl100k =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Pretokenizer make(const std::string& pattern, Pretokenizer::Engine engine = Pretokenizer::Engine::kFastest) {
  auto made = Pretokenizer::make({{.pattern = pattern}}, engine);
  SPARROW_CHECK(made.ok());
  return std::move(made).value();
}

std::vector<std::string> words(const std::string& pattern, std::string_view text) {
  const Pretokenizer pretokenizer = make(pattern);
  const auto views = pretokenizer.split(text);
  return {views.value().begin(), views.value().end()};
}

TEST(Pretokenize, LettersTakeOnePrecedingSymbolAndTheContractionAfterThem) {
  EXPECT_THAT(words(kO200k, "I'm here, aren't WE'LL \"quoted\""),
              ElementsAre("I'm", " here", ",", " aren't", " WE'LL", " \"", "quoted", "\""));
}

TEST(Pretokenize, CapitalsBeginANewWordAfterSmallLetters) {
  EXPECT_THAT(words(kO200k, "camelCaseHTTPServer"), ElementsAre("camel", "Case", "HTTPServer"));
}

TEST(Pretokenize, CapitalsAfterLettersWithoutCaseBelongToThemOnlyIfSmallLettersFollow) {
  EXPECT_THAT(words(kO200k, "日本AB"), ElementsAre("日本", "AB"));
  EXPECT_THAT(words(kO200k, "日本ABc"), ElementsAre("日本ABc"));
}

TEST(Pretokenize, MarkBeforeCapitalsIsAWordOfItsOwn) {
  EXPECT_THAT(words(kO200k, "\u0301AB"), ElementsAre("\u0301", "AB"));
  EXPECT_THAT(words(kO200k, "\u0301ab"), ElementsAre("\u0301ab"));
}

TEST(Pretokenize, DigitsGoInGroupsOfThree) {
  EXPECT_THAT(words(kO200k, "1234567 ½²"), ElementsAre("123", "456", "7", " ", "½²"));
}

TEST(Pretokenize, WhiteSpaceLeavesItsLastBlankToTheNextWord) {
  EXPECT_THAT(words(kO200k, "a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(words(kO200k, "a   "), ElementsAre("a", "   "));
  EXPECT_THAT(words(kO200k, "a  \n  \n   b"), ElementsAre("a", "  \n  \n", "  ", " b"));
  EXPECT_THAT(words(kO200k, "a\t\tb"), ElementsAre("a", "\t", "\tb"));
}

TEST(Pretokenize, SymbolsTakeLineBreaksAndSlashesAfterThem) {
  EXPECT_THAT(words(kO200k, "a; //\n/x"), ElementsAre("a", ";", " //\n/", "x"));
  EXPECT_THAT(words(no_slash(), "a; //\n/x"), ElementsAre("a", ";", " //\n", "/x"));
}

TEST(Pretokenize, Gpt2KnowsContractionsInSmallLettersOnly) {
  EXPECT_THAT(words(std::string(kGpt2Pattern), "it's IT'S 1234"),
              ElementsAre("it", "'s", " IT", "'", "S", " 1234"));
}

// False for characters newer than PCRE2's tables, where the two are bound to differ.
bool is_agreed(uint32_t c, const Pretokenizer& scanner, const Pretokenizer& regex) {
  std::string text = "a";
  append_utf8(text, c);
  text += "B ";
  append_utf8(text, c);
  text += '\n';
  return scanner.split(text).value() == regex.split(text).value();
}

// Eight letters are looked at in one step: anything may stand at any of the eight places.
TEST(Pretokenize, AnyCharacterAtAnyPlaceAmongSmallLettersIsSeen) {
  const Pretokenizer scanner = make(kO200k), regex = make(kO200k, Pretokenizer::Engine::kRegexOnly);
  for (uint32_t c = 0; c < 0x180; ++c)
    for (size_t at = 0; at < 10; ++at) {
      std::string text(at, at % 2 == 0 ? 'a' : 'z');
      append_utf8(text, c);
      text += "mnopqrstuvw";
      EXPECT_EQ(scanner.split(text).value(), regex.split(text).value()) << c << " at " << at;
    }
}

std::string random_text(std::mt19937& random, const std::vector<uint32_t>& characters) {
  constexpr std::string_view kCommon = "aAbB  \n\r\t'sS'tlLdDrReE019!?/-";
  std::string text;
  for (uint32_t n = 1 + random() % 24; n > 0; --n) {
    if (random() % 3 == 0)
      append_utf8(text, characters[random() % characters.size()]);
    else
      text += kCommon[random() % kCommon.size()];
  }
  return text;
}

TEST(Pretokenize, ScannersCutWhereRegexesCut) {
  for (const std::string& pattern : {kO200k, no_slash(), kCl100k, std::string(kGpt2Pattern)}) {
    const Pretokenizer scanner = make(pattern);
    const Pretokenizer regex = make(pattern, Pretokenizer::Engine::kRegexOnly);
    ASSERT_NE(scanner.only_scanner(), nullptr);
    ASSERT_EQ(regex.only_scanner(), nullptr);
    std::mt19937 random(11);
    std::vector<uint32_t> characters;
    while (characters.size() < 3000) {
      const uint32_t c = random() % 4 ? random() % 0x3400 : random() % 0x20000;
      if ((c < 0xD800 || c > 0xDFFF) && is_agreed(c, scanner, regex)) characters.push_back(c);
    }
    for (int i = 0; i < 5000; ++i) {
      const std::string text = random_text(random, characters);
      ASSERT_EQ(scanner.split(text).value(), regex.split(text).value()) << pattern << "\n" << text;
    }
  }
}

TEST(Pretokenize, WordsTogetherAreTheText) {
  std::mt19937 random(12);
  std::vector<uint32_t> characters;
  for (uint32_t c = 0; c < 0x110000; c += 7)
    if (c < 0xD800 || c > 0xDFFF) characters.push_back(c);
  for (const std::string& pattern : {kO200k, kCl100k, std::string(kGpt2Pattern)}) {
    const Pretokenizer scanner = make(pattern);
    for (int i = 0; i < 2000; ++i) {
      const std::string text = random_text(random, characters);
      std::string joined;
      const auto cut = scanner.split(text);
      for (const std::string_view word : cut.value()) {
        ASSERT_FALSE(word.empty());
        joined += word;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

// The Chinese full stop is shared by several scripts and belongs to none.
TEST(Pretokenize, AScriptsNameMeansItsOwnCharacters) {
  EXPECT_THAT(words(R"(\p{Han}+|[^\s\p{L}]{2})", "日本。--"), ElementsAre("日本", "。-", "-"));
  EXPECT_THAT(words(R"(\P{Han}+)", "日。本"), ElementsAre("日", "。", "本"));
  EXPECT_THAT(words(R"(\p{^Han}+)", "日。本"), ElementsAre("日", "。", "本"));
  EXPECT_THAT(words(R"([\p{Han}\p{Hiragana}]+)", "日の。"), ElementsAre("日の", "。"));
}

TEST(Pretokenize, RemovedMatchesAreGoneAndRemovedGapsToo) {
  const auto split = [](SplitRule rule, std::string_view text) {
    const Pretokenizer made = std::move(Pretokenizer::make({std::move(rule)})).value();
    const auto views = made.split(text).value();
    return std::vector<std::string>(views.begin(), views.end());
  };
  EXPECT_THAT(split({.pattern = "-", .keep_matches = false}, "a-b--c"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(split({.pattern = "[a-z]+", .keep_gaps = false}, "ab-c1d"), ElementsAre("ab", "c", "d"));
  EXPECT_THAT(split({.pattern = ".", .syntax = RegexSplitter::Syntax::kLiteral}, "a.b"),
              ElementsAre("a", ".", "b"));
}

TEST(Pretokenize, PatternThatDoesNotCompileIsAnErrorThatQuotesIt) {
  const auto made = Pretokenizer::make({{.pattern = "(unclosed"}});
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, ::testing::HasSubstr("(unclosed"));
}

TEST(Pretokenize, PatternThatRunsAwayIsAnErrorInsteadOfAHang) {
  const Pretokenizer made = make("(?:a+)+$(?<!a)|b");
  const auto words = made.split(std::string(60, 'a'));
  ASSERT_FALSE(words.ok());
  EXPECT_THAT(words.error().message, ::testing::HasSubstr("gave up"));
}

TEST(Pretokenize, EmptyMatchesDoNotStopTheSearch) {
  EXPECT_THAT(words("x*", "axxb"), ElementsAre("a", "xx", "b"));
}

}  // namespace
}  // namespace sparrow
