// SPDX-License-Identifier: Apache-2.0
#include "media/source/data_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace sparrow {
namespace {

using testing::HasSubstr;

constexpr size_t kNoLimit = size_t{1} << 30;

std::string text_of(const MediaBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string decoded(std::string_view text) {
  const auto bytes = decode_base64(text, kNoLimit);
  return bytes.ok() ? text_of(bytes.value()) : "error: " + bytes.error().message;
}

// RFC 4648, section 10.
TEST(Base64, DecodesWhatTheStandardSays) {
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("Zg=="), "f");
  EXPECT_EQ(decoded("Zm8="), "fo");
  EXPECT_EQ(decoded("Zm9v"), "foo");
  EXPECT_EQ(decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(decoded("Zm9vYmE="), "fooba");
  EXPECT_EQ(decoded("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decoded("/+8A"), std::string("\xff\xef\0", 3));
}

std::string encoded(const std::string& bytes) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j)
      group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j)
      text += i + j <= bytes.size() ? kAlphabet[group >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

TEST(Base64, DecodesWhatWasEncoded) {
  std::mt19937 random(1);
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_EQ(decoded(encoded(bytes)), bytes);
  }
}

TEST(Base64, RefusesWhatHasTwoMeanings) {
  for (const char* text :
       {"Zg", "Zg=", "Zm9vYg", "=", "====", "Z===", "Zg==Zg==", "Zm9v\n", "Zm 9v", "Zm9v\nZm9v", "Zm9-",
        "Zm9_", "Zh==", "Zm9=", "Zm9v=", "Zm\0v", "Zm9\x80", "%5Ag="})
    EXPECT_THAT(decoded(text), HasSubstr("error: base64")) << text;
  EXPECT_THAT(decoded("Zm9vY*=="), HasSubstr("character at 5"));
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

TEST(DataUrl, HasATypeAndBytes) {
  for (const char* url : {"data:image/png;base64,Zm9v", "DATA:Image/PNG;BASE64,Zm9v",
                          "data:image/png;charset=utf-8;name=\"a\";base64,Zm9v"}) {
    const auto read = decode_data_url(url, kNoLimit);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read->media_type, "image/png");
    EXPECT_EQ(text_of(read->bytes), "foo");
  }
}

TEST(DataUrl, RefusesWhatItCannotRead) {
  for (const char* url :
       {"", "data", "data:", "http://x/", "data:,Zm9v", "data:;base64,Zm9v", "data:image/png,Zm9v",
        "data:image/png;base64", "data:image;base64,Zm9v", "data:/png;base64,Zm9v", "data:image/;base64,Zm9v",
        "data:image/png/x;base64,Zm9v", "data:ima ge/png;base64,Zm9v", "data:image/p\x80ng;base64,Zm9v",
        "data:image/png;base64;x=y,Zm9v", "data:image/png;base64,Zm9", "data:image/png;base64,Zm9v\n",
        " data:image/png;base64,Zm9v"}) {
    const auto read = decode_data_url(url, kNoLimit);
    ASSERT_FALSE(read.ok()) << url;
    EXPECT_EQ(read.error().code, Errc::kInvalidArgument);
  }
  const auto endless = decode_data_url("data:" + std::string(1 << 20, 'x'), kNoLimit);
  ASSERT_FALSE(endless.ok());
  EXPECT_LE(endless.error().message.size(), 200u);
  EXPECT_FALSE(decode_data_url("data:image/png;base64,Zm9v", 2).ok());
}

}  // namespace
}  // namespace sparrow
