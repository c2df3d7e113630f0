// SPDX-License-Identifier: Apache-2.0
#include "base/json/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "base/json/json.h"

namespace sparrow {
namespace {

std::string number(double value) {
  std::string out;
  append_json_number(out, value);
  return out;
}

std::string quoted_text(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

TEST(JsonWriter, NumbersLookAsPythonWritesThem) {
  EXPECT_EQ(number(1.0), "1.0");
  EXPECT_EQ(number(0.0), "0.0");
  EXPECT_EQ(number(-0.0), "-0.0");
  EXPECT_EQ(number(0.7), "0.7");
  EXPECT_EQ(number(-12.5), "-12.5");
  EXPECT_EQ(number(100), "100.0");
  EXPECT_EQ(number(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(number(0.0001), "0.0001");
  EXPECT_EQ(number(0.00001), "1e-05");
  EXPECT_EQ(number(1234567890123456.0), "1234567890123456.0");
  EXPECT_EQ(number(1e15), "1000000000000000.0");
  EXPECT_EQ(number(1e16), "1e+16");
  EXPECT_EQ(number(1.5e300), "1.5e+300");
  EXPECT_EQ(number(std::numeric_limits<double>::denorm_min()), "5e-324");
  EXPECT_EQ(number(std::numeric_limits<double>::max()), "1.7976931348623157e+308");
}

TEST(JsonWriter, NumbersThatJsonDoesNotHaveBecomeNull) {
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(number(-std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "null");
}

TEST(JsonWriter, RandomDoublesReadBackAsThemselves) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t bits = random();
    double value;
    static_assert(sizeof value == sizeof bits);
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(std::strtod(number(value).c_str(), nullptr), value);
  }
}

TEST(JsonWriter, StringsEscapeOnlyWhatTheyMust) {
  EXPECT_EQ(quoted_text("a\"b\\c/d"), R"("a\"b\\c/d")");
  EXPECT_EQ(quoted_text("\b\f\n\r\t"), R"("\b\f\n\r\t")");
  EXPECT_EQ(quoted_text(std::string_view("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\x7f\"");
  EXPECT_EQ(quoted_text("é中😀<&>"), "\"é中😀<&>\"");
}

TEST(JsonWriter, BytesThatAreNotUtf8BecomeReplacements) {
  EXPECT_EQ(quoted_text("a\xff"
                        "b"),
            "\"a\xEF\xBF\xBD"
            "b\"");
  EXPECT_EQ(quoted_text("\xe2\x82"), "\"\xEF\xBF\xBD\"");
  EXPECT_EQ(quoted_text("\xed\xa0\x80"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

void write_sample(JsonWriter& json) {
  json.begin_object().key("b").integer(1).key("a").begin_array().string("x").number(2.0).boolean(true).null();
  json.begin_object().end_object().begin_array().end_array().end_array();
  json.key("c").raw("{\"r\":1}").key("d").integer(UINT64_MAX).key("e").integer(INT64_MIN).end_object();
}

TEST(JsonWriter, MembersAndElementsAreSeparatedAndKeepTheirOrder) {
  JsonWriter compact;
  write_sample(compact);
  EXPECT_EQ(compact.text(), R"({"b":1,"a":["x",2.0,true,null,{},[]],"c":{"r":1},"d":18446744073709551615,)"
                            R"("e":-9223372036854775808})");
  JsonWriter spaced(JsonWriter::Style::kSpaced);
  write_sample(spaced);
  EXPECT_EQ(spaced.text(), R"({"b": 1, "a": ["x", 2.0, true, null, {}, []], "c": {"r":1}, )"
                           R"("d": 18446744073709551615, "e": -9223372036854775808})");
}

TEST(JsonWriter, IndentedHasALineForEachMemberAndElement) {
  JsonWriter json(JsonWriter::Style::kIndented);
  write_sample(json);
  EXPECT_EQ(json.text(),
            "{\n  \"b\": 1,\n  \"a\": [\n    \"x\",\n    2.0,\n    true,\n    null,\n    {},\n    []\n  ],\n"
            "  \"c\": {\"r\":1},\n  \"d\": 18446744073709551615,\n  \"e\": -9223372036854775808\n}");
}

TEST(JsonWriter, WhatWasReadIsWrittenAsItWas) {
  const std::string text =
      R"({"a": [1, 1.5, 1e-06, true, null, "x\ny", {}, []], "b": {"c": 123456789012345678901234567890}})";
  const JsonDocument document = JsonDocument::parse(text, "text").value();
  JsonWriter json(JsonWriter::Style::kSpaced);
  write_json(document.root(), json);
  EXPECT_EQ(json.text(), text);
}

TEST(JsonWriter, TakeLeavesAnEmptyWriter) {
  JsonWriter json;
  json.begin_array().integer(1).end_array();
  EXPECT_EQ(json.take(), "[1]");
  json.begin_array().integer(2).end_array();
  EXPECT_EQ(json.take(), "[2]");
}

TEST(JsonWriter, RandomBytesInStringsAlwaysParse) {
  std::mt19937 random(2);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes;
    for (uint32_t n = random() % 12; n > 0; --n)
      bytes += static_cast<char>(random() % 4 ? random() : random() % 128);
    JsonWriter json;
    json.begin_object().key(bytes).string(bytes).end_object();
    const auto document = JsonDocument::parse(json.text(), "written");
    ASSERT_TRUE(document.ok()) << json.text() << document.error().message;
  }
}

}  // namespace
}  // namespace sparrow
