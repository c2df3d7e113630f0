// SPDX-License-Identifier: Apache-2.0
#include "base/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace sparrow {
namespace {

using ::testing::HasSubstr;

JsonDocument parsed(std::string_view text) {
  auto document = JsonDocument::parse(text, "test");
  EXPECT_TRUE(document.ok()) << document.error().message;
  return std::move(document).value();
}

std::string parse_error(std::string_view text, JsonLimits limits = {}) {
  const auto document = JsonDocument::parse(text, "test.json", limits);
  return document.ok() ? "(no error)" : document.error().message;
}

TEST(Json, ValuesComeBackWithTheirTypes) {
  const JsonDocument document = parsed(
      R"({"i": -7, "d": 0.5, "b": true, "s": "a\u00e9\n", "n": null, "a": [1, [2], {"x": 3}], "big": 9223372036854775807})");
  const Json root = document.root();
  EXPECT_EQ(root.find("i")->as_int(-10, 10).value(), -7);
  EXPECT_EQ(root.find("d")->as_number().value(), 0.5);
  EXPECT_EQ(root.find("i")->as_number().value(), -7.0);
  EXPECT_TRUE(root.find("b")->as_bool().value());
  EXPECT_EQ(root.find("s")->as_string().value(), "a\xc3\xa9\n");
  EXPECT_FALSE(root.find("n").has_value());
  EXPECT_FALSE(root.find("absent").has_value());
  EXPECT_EQ(root.find("big")->as_int(0, INT64_MAX).value(), INT64_MAX);
  const Json list = *root.find("a");
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list.element(2).find("x")->path(), "a[2].x");
  EXPECT_EQ(list.element(1).element(0).path(), "a[1][0]");
}

TEST(Json, MembersKeepTheirOrder) {
  const JsonDocument document = parsed(R"({"z": 1, "a": 2, "m": 3})");
  EXPECT_EQ(document.root().key(0), "z");
  EXPECT_EQ(document.root().key(1), "a");
  EXPECT_EQ(document.root().member(2).as_int(0, 9).value(), 3);
}

TEST(Json, WholeNumbersMayBeWrittenAsFloats) {
  const JsonDocument document = parsed(R"([1e6, 16.0, 1.5, 1e300])");
  EXPECT_EQ(document.root().element(0).as_int(0, INT64_MAX).value(), 1000000);
  EXPECT_EQ(document.root().element(1).as_int(0, INT64_MAX).value(), 16);
  EXPECT_FALSE(document.root().element(2).as_int(0, INT64_MAX).ok());
  EXPECT_FALSE(document.root().element(3).as_int(0, INT64_MAX).ok());
}

TEST(Json, DoublesAreCorrectlyRounded) {
  const JsonDocument document =
      parsed("[1.702, 1e-06, 0.1, 2.2250738585072014e-308, 1.9850849150290313e-13]");
  EXPECT_EQ(document.root().element(0).as_number().value(), 1.702);
  EXPECT_EQ(document.root().element(1).as_number().value(), 1e-06);
  EXPECT_EQ(document.root().element(2).as_number().value(), 0.1);
  EXPECT_EQ(document.root().element(3).as_number().value(), 2.2250738585072014e-308);
  EXPECT_EQ(document.root().element(4).as_number().value(), 1.9850849150290313e-13);
}

TEST(Json, ErrorsNameThePathAndTheValue) {
  const JsonDocument document =
      parsed(R"({"text_config": {"hidden_size": "abc", "n": 2.5, "u": 18446744073709551615}})");
  const Json text = *document.root().find("text_config");
  EXPECT_EQ(text.find("hidden_size")->as_int(1, 100).error().message,
            "text_config.hidden_size must be an integer from 1 to 100, got \"abc\"");
  EXPECT_THAT(text.find("n")->as_int(1, 100).error().message, HasSubstr("text_config.n must be an integer"));
  EXPECT_THAT(text.find("u")->as_int(0, INT64_MAX).error().message, HasSubstr("text_config.u"));
  EXPECT_EQ(text.find("n")->as_bool().error().message, "text_config.n must be true or false, got 2.5");
  EXPECT_EQ(text.find("n")->as_string().error().message, "text_config.n must be a string, got 2.5");
  EXPECT_EQ(text.find("hidden_size")->as_number().error().message,
            "text_config.hidden_size must be a number, got \"abc\"");
  EXPECT_EQ(text.at("absent").error().message, "text_config.absent is missing");
  EXPECT_THAT(document.root("generation_config").at("x").error().message, HasSubstr("generation_config.x"));
  EXPECT_THAT(text.find("n")->at("x").error().message, HasSubstr("text_config.n must be an object"));
}

TEST(Json, DefaultsApplyToAbsentAndNullFieldsOnly) {
  const JsonDocument document = parsed(R"({"n": null, "i": 3, "wrong": "x"})");
  const Json root = document.root();
  EXPECT_EQ(root.int_or("n", 5, 0, 9).value(), 5);
  EXPECT_EQ(root.int_or("absent", 5, 0, 9).value(), 5);
  EXPECT_EQ(root.int_or("i", 5, 0, 9).value(), 3);
  EXPECT_FALSE(root.int_or("wrong", 5, 0, 9).ok());
  EXPECT_FALSE(root.bool_or("wrong", true).ok());
  EXPECT_FALSE(root.number_or("wrong", 1.0).ok());
  EXPECT_FALSE(root.string_or("i", "x").ok());
}

TEST(Json, LongValuesAreCutInMessages) {
  const JsonDocument document = parsed("{\"s\": \"" + std::string(1000, 'x') + "\"}");
  const std::string message = document.root().find("s")->as_bool().error().message;
  EXPECT_LT(message.size(), 120u);
  EXPECT_THAT(message, HasSubstr("..."));
}

TEST(Json, SyntaxErrorsGiveTheirPlace) {
  EXPECT_THAT(parse_error("{\n  \"a\": 1,\n  oops\n}"), HasSubstr("test.json is not valid JSON"));
  EXPECT_THAT(parse_error("{\n  \"a\": 1,\n  oops\n}"), HasSubstr("line 3"));
  EXPECT_THAT(parse_error(""), HasSubstr("test.json is not valid JSON"));
  EXPECT_THAT(parse_error("{\"a\": 1} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("[1, 2"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("\"\xff\""), HasSubstr("not valid JSON"));
}

TEST(Json, NestingBeyondTheLimitIsAnErrorAndNotACrash) {
  const std::string deep(100000, '[');
  EXPECT_EQ(parse_error(deep, {.max_depth = 64}),
            "test.json is nested more than 64 levels deep at line 1, column 65");
  EXPECT_EQ(parse_error("[[[[1]]]]", {.max_bytes = 100, .max_depth = 4}), "(no error)");
  EXPECT_NE(parse_error("[[[[[1]]]]]", {.max_bytes = 100, .max_depth = 4}), "(no error)");
}

TEST(Json, TextBeyondTheLimitIsAnError) {
  EXPECT_THAT(parse_error("[1, 2, 3]", {.max_bytes = 8, .max_depth = 4}), HasSubstr("9 bytes"));
}

TEST(Json, AKeyThatOccursTwiceIsAnErrorThatNamesIt) {
  EXPECT_THAT(parse_error(R"({"a": 1, "b": {"c": 1, "d": 2, "c": 3}})"), HasSubstr("\"c\" occurs twice"));
  EXPECT_THAT(parse_error(R"({"": 1, "": 2})"), HasSubstr("\"\" occurs twice"));
}

TEST(Json, QuotedTextParsesBackToItself) {
  const std::string nasty = "a\"b\\c\n\x01\t\xc3\xa9/";
  const JsonDocument document = parsed(json_quoted(nasty));
  EXPECT_EQ(document.root().as_string().value(), nasty);
}

}  // namespace
}  // namespace sparrow
