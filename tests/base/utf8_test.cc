// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

constexpr const char* kR = "\xEF\xBF\xBD";

std::string times(int n) {
  std::string out;
  while (n-- > 0) out += kR;
  return out;
}

TEST(Utf8, EveryCodePointIsWrittenAndReadBack) {
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Char read = decode_utf8(text);
    ASSERT_TRUE(read.valid) << c;
    ASSERT_EQ(read.code_point, c);
    ASSERT_EQ(read.length, text.size());
    int length = 0;
    ASSERT_EQ(decode_valid_utf8(text.data(), length), c);
    ASSERT_EQ(static_cast<size_t>(length), text.size());
    ASSERT_EQ(valid_utf8_prefix(text), text.size());
  }
}

TEST(Utf8, SurrogatesAndValuesPastTheEndAreWrittenAsReplacements) {
  std::string text;
  append_utf8(text, 0xD800);
  append_utf8(text, 0x110000);
  EXPECT_EQ(text, times(2));
}

TEST(Utf8, EachLongestStartOfASequenceIsReplacedOnce) {
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x98"
                                 "a"),
            times(1) + "a");
  EXPECT_EQ(replace_invalid_utf8("\xe2\x82\xe2\x82\xac"), times(1) + "\xe2\x82\xac");
  EXPECT_EQ(replace_invalid_utf8("\xc3\x28"), times(1) + "(");
  EXPECT_EQ(replace_invalid_utf8("\x80\xbf"), times(2));
}

TEST(Utf8, OverlongFormsSurrogatesAndTooLargeValuesAreReplacedByteByByte) {
  EXPECT_EQ(replace_invalid_utf8("\xc0\xaf"), times(2));
  EXPECT_EQ(replace_invalid_utf8("\xe0\x80\x80"), times(3));
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), times(3));
  EXPECT_EQ(replace_invalid_utf8("\xf4\x90\x80\x80"), times(4));
  EXPECT_EQ(replace_invalid_utf8("\xf5\xff\xfe"), times(3));
}

TEST(Utf8, TruncatedMeansThatMoreBytesCouldHelp) {
  EXPECT_TRUE(decode_utf8("\xf0\x9f\x98").truncated);
  EXPECT_TRUE(decode_utf8("\xe2").truncated);
  EXPECT_FALSE(decode_utf8("\xe2(").truncated);
  EXPECT_FALSE(decode_utf8("\xff").truncated);
  EXPECT_FALSE(decode_utf8("\xed\xa0").truncated);
}

TEST(Utf8, ValidPrefixStopsAtTheFirstBadByteWhereverItLies) {
  for (size_t at = 0; at < 40; ++at) {
    std::string text(40, 'x');
    text[at] = '\xff';
    EXPECT_EQ(valid_utf8_prefix(text), at);
  }
}

// The text in pieces cut before each of `cuts`, put together again.
std::string streamed(std::string_view text, std::initializer_list<size_t> cuts) {
  Utf8Stream stream;
  std::string out, repaired;
  size_t from = 0;
  for (const size_t cut : cuts) {
    const std::string_view next = stream.push(text.substr(from, cut - from), repaired);
    EXPECT_EQ(valid_utf8_prefix(next), next.size());
    out += next;
    from = cut;
  }
  out += stream.push(text.substr(from), repaired);
  return out += stream.finish();
}

TEST(Utf8Stream, EveryCutGivesTheSameText) {
  const std::string_view texts[] = {
      "plain",    "\xC3\xA9t\xC3\xA9",     "\xF0\x9F\x98\x80", "a\xF0\x9F\x98", "\xF0\x9F\xC3\xA9",
      "\xE2\x82", "\xFF\xFE\xED\xA0\x80z", "\xC3\xC3\xA9"};
  for (const std::string_view text : texts)
    for (size_t first = 0; first <= text.size(); ++first)
      for (size_t second = first; second <= text.size(); ++second)
        EXPECT_EQ(streamed(text, {first, second}), replace_invalid_utf8(text)) << first << " " << second;
}

TEST(Utf8Stream, BytesThatMayYetBecomeACharacterWait) {
  Utf8Stream stream;
  std::string repaired;
  EXPECT_EQ(stream.push("a\xE2\x82", repaired), "a");
  EXPECT_EQ(stream.push("", repaired), "");
  EXPECT_EQ(stream.push("\xAC!", repaired), "\xE2\x82\xAC!");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push("\xE2", repaired), "");
  EXPECT_EQ(stream.finish(), kReplacementUtf8);
  EXPECT_EQ(stream.push("new", repaired), "new");
}

}  // namespace
}  // namespace sparrow
