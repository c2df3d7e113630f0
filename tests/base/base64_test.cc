// SPDX-License-Identifier: Apache-2.0
#include "base/text/base64.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace sparrow {
namespace {

using testing::HasSubstr;

constexpr size_t kNoLimit = size_t{1} << 30;

std::string text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string decoded(std::string_view text) {
  const auto bytes = decode_base64(text, kNoLimit);
  return bytes.ok() ? text_of(bytes.value()) : "error: " + bytes.error().message;
}

// RFC 4648, section 10.
TEST(Base64, IsWhatTheStandardSays) {
  const std::pair<const char*, std::string> cases[] = {
      {"", ""},
      {"Zg==", "f"},
      {"Zm8=", "fo"},
      {"Zm9v", "foo"},
      {"Zm9vYg==", "foob"},
      {"Zm9vYmE=", "fooba"},
      {"Zm9vYmFy", "foobar"},
      {"/+8A", std::string("\xff\xef\0", 3)},
  };
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(decoded(text), bytes);
    EXPECT_EQ(to_base64(bytes), text);
  }
}

TEST(Base64, DecodesWhatWasEncoded) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_EQ(decoded(to_base64(bytes)), bytes);
  }
}

TEST(Base64, RefusesWhatHasTwoMeanings) {
  for (const char* text :
       {"Zg", "Zg=", "Zm9vYg", "=", "====", "Z===", "Zg==Zg==", "Zm9v\n", "Zm 9v", "Zm9v\nZm9v", "Zm9-",
        "Zm9_", "Zh==", "Zm9=", "Zm9v=", "Zm\0v", "Zm9\x80", "%5Ag="})
    EXPECT_THAT(decoded(text), HasSubstr("error: base64")) << text;
  EXPECT_THAT(decoded("Zm9vY*=="), HasSubstr("character at 5"));
  // As `base64` writes it unless told otherwise: the length alone would tell nobody.
  EXPECT_THAT(decoded("Zm9v\nZm9v\n"), HasSubstr("a space or the end of a line at 4"));
  EXPECT_THAT(decoded("Zm9vYg"), HasSubstr("must be a multiple of 4"));
}

TEST(Base64, IsMeasuredBeforeItIsDecoded) {
  const std::string text(std::string(1 << 20, '*'));  // no digits at all: whoever looked would say so
  const auto bytes = decode_base64(text, 1000);
  ASSERT_FALSE(bytes.ok());
  EXPECT_EQ(bytes.error().message, "786432 bytes; at most 1000 are allowed");
  EXPECT_TRUE(decode_base64("Zm9v", 3).ok());
  EXPECT_FALSE(decode_base64("Zm9v", 2).ok());
  EXPECT_TRUE(decode_base64("Zm8=", 2).ok());
}

}  // namespace
}  // namespace sparrow
