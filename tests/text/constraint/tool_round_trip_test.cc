// SPDX-License-Identifier: Apache-2.0
// Calls that masks let through are read back as arguments that fit the schema: random walks, the output
// parser, and the same schema as JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/constraint_walks.h"
#include "support/output_cases.h"
#include "text/constraint/schema/json_schema.h"

namespace sparrow {
namespace {

using sparrow::testing::fits;
using sparrow::testing::held_to;
using sparrow::testing::random_text;
using ::testing::HasSubstr;

// An answer that is one call.
std::string marked(std::string_view arguments) {
  std::string text = with_markers("@<tool_call>\n@<invoke name=\"f\">");
  for (const char byte : arguments) byte == kMarkerByte ? text += kToolMarker : text += byte;
  return text + with_markers("@</invoke>\n@</tool_call>");
}

// {"v": ...} with no other members.
std::string of_v(const std::string& schema) {
  return R"({"type":"object","properties":{"v":)" + schema +
         R"(},"required":["v"],"additionalProperties":false})";
}

constexpr const char* kTagged =
    R"({"oneOf":[{"type":"object","properties":{"k":{"const":"num"},"v":{"type":"integer"}},"required":["k","v"],"additionalProperties":false},)"
    R"({"type":"object","properties":{"k":{"const":"zip"},"v":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["k","v"],"additionalProperties":false},)"
    R"({"type":"object","properties":{"v":{"type":"array","items":{"type":"boolean"},"minItems":1},"k":{"const":"flags"}},"required":["k","v"],"additionalProperties":false}]})";

// Of the arguments themselves.
const std::string kSchemas[] = {
    of_v(kTagged),
    kTagged,
    R"({"type":"object","properties":{"k":{"type":"string"}},"required":["k"],"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["x"]},{"properties":{"k":{"const":"b"},"x":{"type":"string","pattern":"^[0-9]+$"}},"required":["x"]}]})",
    of_v(
        R"({"anyOf":[{"type":"integer","minimum":10,"maximum":12},{"type":"string","pattern":"^[0-9]{3}$"}]})"),
    of_v(R"({"anyOf":[{"type":"string","pattern":"^[a-z]+$"},{"type":"integer"}]})"),
    of_v(R"({"type":["integer","string"],"pattern":"^[ +0-9]{1,3}$"})"),
    of_v(R"({"anyOf":[{"type":"boolean"},{"type":"integer","maximum":1,"minimum":0},{"type":"null"}]})"),
    of_v(
        R"({"anyOf":[{"type":"array","items":{"type":"integer"},"minItems":1},{"type":"array","items":{"type":"string","pattern":"^[0-9x]{2}$"},"minItems":1}]})"),
    of_v(R"({"enum":[[1],[2],"z",{"a":1},{"a":"1"},[],[true,null],{"b":{"c":[]}}]})"),
    of_v(R"({"const":{"a":1,"odd<>name":[true]}})"),
    of_v(R"({"type":"object","properties":{"a":{"type":"integer"}},"const":{"a":1}})"),
    of_v(R"({"type":"array","items":{"const":[1]},"minItems":1,"maxItems":2})"),
    of_v(R"({"anyOf":[{"const":[1]},{"type":"boolean"}]})"),
    R"({"type":"object","properties":{"a":{"const":[{"b":2}]}},"const":{"a":[{"b":2}]}})",
    R"({"type":"object"})",
    "{}",
    R"({"type":"object","properties":{}})",
    R"({"type":"object","additionalProperties":true,"minProperties":1})",
    R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
    R"({"type":"object","properties":{"z":{"type":"boolean"}},"additionalProperties":{"type":"array","items":{"type":"integer"},"maxItems":2}})",
    R"({"$ref":"#/$defs/p","$defs":{"p":{"type":"object","additionalProperties":{"type":"boolean"}}}})",
    R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"type":"boolean"},"minProperties":1})",
    R"({"type":"object","patternProperties":{"^k[0-9]$":{"type":"boolean"}},"additionalProperties":false,"minProperties":1})",
    R"({"type":"object","properties":{"z":{"type":"integer"}},"patternProperties":{"^k[0-9]$":{"type":"boolean"}},"additionalProperties":false,"required":["k1"]})",
    of_v(
        R"({"type":"object","patternProperties":{"^k[0-9]$":{"type":"boolean"}},"additionalProperties":false,"minProperties":1})"),
    of_v(
        R"({"type":"object","properties":{"odd<>name":{"type":"integer"}},"required":["odd<>name"],"additionalProperties":false})"),
    of_v(
        R"({"type":"object","propertyNames":{"anyOf":[{"const":"a"},{"pattern":"^b{2}$"}]},"additionalProperties":{"type":"boolean"},"minProperties":1})"),
    R"({"type":"object","properties":{"v":{"$ref":"#flag"}},"required":["v"],"additionalProperties":false,"$defs":{"f":{"$anchor":"flag","type":"boolean"}}})",
};

TEST(ToolRoundTrip, WhatMasksLetThroughIsReadBackAsItFits) {
  for (const std::string& text : kSchemas) {
    const std::string tools_json = R"([{"name":"f","parameters":)" + text + "}]";
    const auto document = JsonDocument::parse(tools_json, "tools");
    ASSERT_TRUE(document.ok()) << text;
    const Json schema = *document->root().element(0).find("parameters");
    const auto written = held_to(schema, ValueStyle::kToolCall), read = held_to(schema, ValueStyle::kJson);
    ASSERT_TRUE(written.ok()) << text << ": " << written.error().message;
    ASSERT_TRUE(read.ok()) << text << ": " << read.error().message;
    const ToolSet tools = ToolSet::from_json(document->root()).value();
    int ended = 0;
    for (unsigned seed = 0; seed < 40; ++seed) {
      const auto arguments = random_text(written.value(), seed, 1500);
      if (!arguments) continue;  // names and texts may go on for long
      ++ended;
      const std::string answer = marked(*arguments);
      std::vector<std::string> bytes;
      for (const char byte : answer) bytes.emplace_back(1, byte);
      const ParsedOutput whole = parse_chunks({.tools = &tools}, {answer});
      ASSERT_EQ(whole, parse_chunks({.tools = &tools}, bytes)) << text;
      ASSERT_EQ(whole.tool_calls.size(), 1u) << text << " " << answer;
      EXPECT_EQ(whole.content, "") << text << " " << answer;
      EXPECT_TRUE(fits(read.value(), whole.tool_calls[0].arguments)) << text << "\n"
                                                                     << answer << "\n"
                                                                     << whole.tool_calls[0].arguments;
    }
    EXPECT_GT(ended, 5) << text;
  }
}

TEST(ToolRoundTrip, FreeArgumentsCanBeWritten) {
  const auto may_write = [](const std::string& schema, std::string_view arguments) {
    const auto document = JsonDocument::parse(schema, "schema");
    const auto held = held_to(document->root(), ValueStyle::kToolCall);
    EXPECT_TRUE(held.ok()) << schema;
    std::string text;
    for (const char c : arguments) text += c == '@' ? kMarkerByte : c;
    return held.ok() && fits(held.value(), text);
  };
  for (
      const std::string schema :
      {R"({"type":"object","additionalProperties":true})", R"({"type":"object"})",
       R"({"type":"object","properties":{}})", R"({"additionalProperties":{"type":"string"}})", "{}",
       R"({"type":"object","properties":{"z":{"type":"integer"}},"additionalProperties":{"type":"string"}})"}) {
    EXPECT_TRUE(may_write(schema, "@<city>Ulm@</city>@<größe>3@</größe>")) << schema;
    EXPECT_TRUE(may_write(schema, "")) << schema;
    EXPECT_FALSE(may_write(schema, "@<city>Ulm@</town>")) << schema;
    EXPECT_FALSE(may_write(schema, "Ulm")) << schema;
    EXPECT_FALSE(may_write(schema, "@<a b>Ulm@</a b>")) << schema;
  }
  const std::string declared = R"({"properties":{"z":{"type":"integer"}},"additionalProperties":true})";
  EXPECT_TRUE(may_write(declared, "@<z>1@</z>@<y>1@</y>"));
  EXPECT_FALSE(may_write(declared, "@<z>1@</z>@<z>1@</z>"));
}

TEST(ToolRoundTrip, ClosingTagsRepeatTheNameThatCame) {
  const auto document = JsonDocument::parse(R"({"additionalProperties":true})", "schema");
  const auto held = held_to(document->root(), ValueStyle::kToolCall);
  ASSERT_TRUE(held.ok());
  Matcher matcher(held.value());
  const std::string ns(1, kMarkerByte);
  ASSERT_TRUE(matcher.advance(ns + "<abcd>" + ns + "</"));
  EXPECT_FALSE(matcher.may_end());
  EXPECT_EQ(matcher.forced(), "abcd>");
  std::vector<std::string> next;
  for (const int32_t id : sparrow::testing::ids_of(sparrow::testing::mask_of(matcher)))
    next.emplace_back(matcher.constraint().vocabulary().bytes_of(id));
  EXPECT_THAT(next, ::testing::UnorderedElementsAre("a", "ab", "abc"));
  EXPECT_FALSE(matcher.advance("abx"));
  ASSERT_TRUE(matcher.advance("abc"));
  EXPECT_FALSE(matcher.must_end());
  EXPECT_EQ(matcher.forced(), "d>");
  ASSERT_TRUE(matcher.advance("d>"));
  EXPECT_TRUE(matcher.may_end());
}

TEST(ToolRoundTrip, WhatNoElementCanHoldIsRefusedByPlace) {
  const auto error_of = [](const std::string& schema) {
    const auto document = JsonDocument::parse(schema, "schema");
    const auto held = held_to(document->root(), ValueStyle::kToolCall);
    return held.ok() ? "" : held.error().message;
  };
  EXPECT_THAT(error_of(R"({"properties":{"odd<>name":true},"required":["odd<>name"]})"),
              HasSubstr("keyword required at # names odd<>name, and no element of a call can be called so"));
  EXPECT_THAT(error_of(of_v(R"({"type":"array","items":false,"minItems":1})")),
              HasSubstr("cannot be satisfied: nothing fits what is at #/properties/v"));
  EXPECT_THAT(error_of(R"({"type":"object","minProperties":2})"),
              HasSubstr("keyword minProperties at # asks"));
}

}  // namespace
}  // namespace sparrow
