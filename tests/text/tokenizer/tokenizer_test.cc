// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/json/json_writer.h"
#include "base/utf8.h"
#include "text/m3_tokens.h"
#include "text/tokenizer/tokenizer_file.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Spec {
  std::vector<std::pair<std::string, std::string>> merges = {};
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":true})";
  std::string model_extra = "";
};

// Ids 0 to 255 are the bytes, then one for each merge. Merges are written in the alphabet of the file.
std::string tokenizer_json(const Spec& spec) {
  JsonWriter vocab;
  vocab.begin_object();
  int id = 0;
  for (const uint32_t c : byte_level_alphabet()) {
    std::string text;
    append_utf8(text, c);
    vocab.key(text).integer(id++);
  }
  JsonWriter merges;
  merges.begin_array();
  for (const auto& [left, right] : spec.merges) {
    vocab.key(left + right).integer(id++);
    merges.string(left + " " + right);
  }
  vocab.end_object();
  merges.end_array();
  return strf(
      R"({{"added_tokens":{},"normalizer":{},"pre_tokenizer":{},"model":{{"type":"BPE",{}"vocab":{},"merges":{}}}}})",
      spec.added, spec.normalizer, spec.pre_tokenizer, spec.model_extra, vocab.text(), merges.text());
}

Tokenizer make(const Spec& spec, const std::string& config = "") {
  auto tokenizer = Tokenizer::parse(tokenizer_json(spec), config);
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.error().message;
  return std::move(tokenizer).value();
}

std::string error_of(const Spec& spec, const std::string& config = "") {
  const auto tokenizer = Tokenizer::parse(tokenizer_json(spec), config);
  return tokenizer.ok() ? "no error" : tokenizer.error().message;
}

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                            Recognise recognise = Recognise::kAll) {
  return tokenizer.encode(text, recognise).value();
}

// {"content": .., "id": .., flags}
std::string added(std::string_view content, int id, std::string_view flags = "") {
  return strf(R"({{"content":{},"id":{}{}}})",
              [&] {
                std::string quoted;
                append_json_string(quoted, content);
                return quoted;
              }(),
              id, flags);
}

TEST(Tokenizer, MergesGoByRankThenFromLeftToRight) {
  const Tokenizer tokenizer = make({.merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}});
  EXPECT_THAT(encode(tokenizer, "abc"), ElementsAre('a', 256));
  EXPECT_THAT(encode(tokenizer, "abab"), ElementsAre(257, 257));
  EXPECT_THAT(encode(tokenizer, "aaaaa"), ElementsAre(258, 259));
}

TEST(Tokenizer, PairRankedBeforeItsPartIsMergedAsSoonAsItAppears) {
  // "xyz" is ranked before "xy": once "xy" exists, "xy"+"z" goes before any other "xy".
  const Tokenizer tokenizer = make({.merges = {{"xy", "z"}, {"x", "y"}, {"z", "x"}}});
  EXPECT_THAT(encode(tokenizer, "xyzxyz"), ElementsAre(256, 256));
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 100; ++i) text += "xyz", expected.push_back(256);
  EXPECT_EQ(encode(tokenizer, text), expected);
}

TEST(Tokenizer, LongWordsHaveTheIdsThatTheSimplestAlgorithmFinds) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "b"}, {"b", "a"}, {"ab", "a"}, {"a", "a"}, {"ab", "ab"}, {"aa", "ba"}, {"c", "ab"}, {"aba", "c"}};
  const Tokenizer tokenizer = make({.merges = merges});
  std::mt19937 random(5);
  for (const size_t size : {90u, 96u, 97u, 150u, 1000u})
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> symbols;
      std::string text;
      for (size_t i = 0; i < size; ++i)
        symbols.push_back(std::string(1, "aabc"[random() % 4])), text += symbols.back();
      for (const auto& [left, right] :
           merges)  // ranks in order are enough: no merge makes a pair of a lower rank
        for (size_t i = 0; i + 1 < symbols.size(); ++i)
          if (symbols[i] == left && symbols[i + 1] == right) {
            symbols[i] += right;
            symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
          }
      std::vector<int32_t> expected;
      for (const std::string& symbol : symbols) expected.push_back(*tokenizer.id_of(symbol));
      ASSERT_EQ(encode(tokenizer, text), expected) << text;
    }
}

TEST(Tokenizer, IgnoredMergesGiveWayToAWordThatIsAToken) {
  // Merging leaves "ab" + "c"; the token "abc" exists through another path.
  const Spec spec{.merges = {{"a", "b"}, {"b", "c"}, {"a", "bc"}}};
  EXPECT_THAT(encode(make(spec), "abc"), ElementsAre(256, 'c'));
  Spec ignoring = spec;
  ignoring.model_extra = R"("ignore_merges":true,)";
  EXPECT_THAT(encode(make(ignoring), "abc"), ElementsAre(258));
}

TEST(Tokenizer, AddedTokensAreFoundLeftmostAndLongest) {
  const Tokenizer tokenizer =
      make({.added = "[" + added("<a>", 256) + "," + added("<a><b>", 257) + "," + added("><", 258) + "]"});
  EXPECT_THAT(encode(tokenizer, "<a><b>"), ElementsAre(257));
  EXPECT_THAT(encode(tokenizer, "<a><c"), ElementsAre(256, '<', 'c'));
  EXPECT_THAT(encode(tokenizer, "x><"), ElementsAre('x', 258));
  EXPECT_THAT(encode(tokenizer, "<a"), ElementsAre('<', 'a'));
}

TEST(Tokenizer, SpecialTokensCanBePlainText) {
  const Tokenizer tokenizer =
      make({.added = "[" + added("<s>", 256, R"(,"special":true)") + "," + added("<t>", 257) + "]"});
  EXPECT_THAT(encode(tokenizer, "<s><t>"), ElementsAre(256, 257));
  EXPECT_THAT(encode(tokenizer, "<s><t>", Recognise::kNotSpecial), ElementsAre('<', 's', '>', 257));
  EXPECT_THAT(encode(tokenizer, "<s><t>", Recognise::kNone), ElementsAre('<', 's', '>', '<', 't', '>'));
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  const Tokenizer tokenizer = make({});
  EXPECT_EQ(encode(tokenizer, "a\xff\xe2\x82z"), encode(tokenizer, "a\xEF\xBF\xBD\xEF\xBF\xBDz"));
}

TEST(Tokenizer, TagsOfReasoningAndToolsStayInTheTextWhateverTheirFlag) {
  std::string list;
  for (size_t i = 0; i < kM3AddedTokens.size(); ++i)
    list += (i ? "," : "") + added(kM3AddedTokens[i], 256 + static_cast<int>(i), R"(,"special":true)");
  const Tokenizer tokenizer = make({.added = "[" + list + "]"});
  for (size_t i = 0; i < kM3AddedTokens.size(); ++i) {
    const std::vector<int32_t> ids = {256 + static_cast<int32_t>(i)};
    EXPECT_EQ(tokenizer.decode(ids).value(), kM3AddedTokens[i]);
    EXPECT_EQ(tokenizer.decode(ids, true).value(),
              is_markup_token(kM3AddedTokens[i]) ? kM3AddedTokens[i] : "");
    EXPECT_EQ(tokenizer.is_special(ids[0]), i < 50 || (i >= 54 && i < 58)) << kM3AddedTokens[i];
  }
}

TEST(Tokenizer, IdsOutOfRangeAreErrorsThatNameTheId) {
  const Tokenizer tokenizer = make({});
  const std::vector<int32_t> high = {1, 256}, low = {-1};
  ASSERT_FALSE(tokenizer.decode(high).ok());
  EXPECT_THAT(tokenizer.decode(high).error().message, HasSubstr("from 0 to 255, got 256"));
  EXPECT_FALSE(tokenizer.decode(low).ok());
}

TEST(Tokenizer, ReservedIdsDecodeToNothing) {
  Tokenizer tokenizer = make({});
  tokenizer.reserve_ids(300);
  const std::vector<int32_t> ids = {'a', 299, 'b'}, beyond = {300};
  EXPECT_EQ(tokenizer.decode(ids).value(), "ab");
  EXPECT_FALSE(tokenizer.decode(beyond).ok());
  EXPECT_THAT(encode(tokenizer, "ab"), ElementsAre('a', 'b'));
}

TEST(Tokenizer, ConfigurationNamesTokensAndAddsSome) {
  const Tokenizer tokenizer = make(
      {.added = "[" + added("<s>", 256) + "]"},
      R"({"bos_token":"<s>","eos_token":{"content":"<e>"},"unk_token":null,)"
      R"("added_tokens_decoder":{"257":{"content":"<e>","special":true},"256":{"content":"<s>","special":true}}})");
  EXPECT_EQ(tokenizer.bos(), 256);
  EXPECT_EQ(tokenizer.eos(), 257);
  EXPECT_EQ(tokenizer.unk(), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_THAT(encode(tokenizer, "<e>"), ElementsAre(257));
}

TEST(Tokenizer, ErrorsNameTheFieldAndTheValue) {
  EXPECT_THAT(error_of({.normalizer = R"({"type":"Lowercase"})"}), HasSubstr("normalizer must be NFC"));
  EXPECT_THAT(error_of({.pre_tokenizer = R"({"type":"Whitespace"})"}),
              HasSubstr("pre_tokenizer must be Split"));
  EXPECT_THAT(error_of({.pre_tokenizer = R"({"type":"ByteLevel","add_prefix_space":true})"}),
              HasSubstr("pre_tokenizer.add_prefix_space is not supported"));
  EXPECT_THAT(error_of({.model_extra = R"("dropout":0.1,)"}),
              HasSubstr("model.dropout is not supported, got 0.1"));
  EXPECT_THAT(error_of({.added = "[" + added("x", -1) + "]"}), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(error_of({.added = "[" + added("x", 300) + "," + added("y", 300) + "]"}),
              HasSubstr("has the id of \"x\""));
  EXPECT_THAT(error_of({}, R"({"bos_token":"<none>"})"), HasSubstr("tokenizer_config.json.bos_token"));
  EXPECT_THAT(error_of({}, R"({"added_tokens_decoder":{"x":{"content":"a"}}})"), HasSubstr("token id"));
  std::string broken = tokenizer_json({.merges = {{"a", "b"}}});
  broken.replace(broken.find("\"a b\""), 5, "\"a q\"");
  const auto parsed = Tokenizer::parse(broken);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message, HasSubstr("model.merges[0]"));
}

TEST(Tokenizer, MissingFileIsAnErrorThatNamesIt) {
  const auto tokenizer = Tokenizer::load("/nowhere");
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_THAT(tokenizer.error().message, HasSubstr("tokenizer.json"));
}

TEST(Tokenizer, NormalisationComesBeforeMergesAndAfterAddedTokensThatAreNotNormalised) {
  const std::string raw = added("e\u0301!", 256, R"(,"normalized":false)");
  const std::string composed = added("e\u0301?", 257, R"(,"normalized":true)");
  const Tokenizer tokenizer =
      make({.added = "[" + raw + "," + composed + "]", .normalizer = R"({"type":"NFC"})"});
  EXPECT_EQ(encode(tokenizer, "e\u0301"), encode(tokenizer, "\u00e9"));
  EXPECT_THAT(encode(tokenizer, "e\u0301!"), ElementsAre(256));
  EXPECT_EQ(encode(tokenizer, "\u00e9!").back(), '!');
  EXPECT_THAT(encode(tokenizer, "\u00e9?e\u0301?"), ElementsAre(257, 257));
}

TEST(Tokenizer, ThreadsMayShareOne) {
  const Tokenizer tokenizer = make({.merges = {{"a", "b"}, {"c", "d"}, {"ab", "cd"}}});
  const std::string text = "abcd ab cd dcba abab cdcd";
  const std::vector<int32_t> expected = encode(tokenizer, text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) wrong[t] += encode(tokenizer, text) != expected;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

}  // namespace
}  // namespace sparrow
