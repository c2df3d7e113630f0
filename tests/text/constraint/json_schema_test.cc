// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/schema/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/constraint_walks.h"

namespace sparrow {
namespace {

using sparrow::testing::fits;
using sparrow::testing::random_text;
using sparrow::testing::small_vocabulary;
using ::testing::HasSubstr;

Result<std::shared_ptr<Constraint>> schema(std::string_view text, ValueStyle style = ValueStyle::kJson) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, "schema"));
  return sparrow::testing::held_to(document.root(), style);
}

struct Case {
  const char* schema;
  std::vector<std::string> in, out;
};

void check(const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    const auto constraint = schema(one.schema);
    ASSERT_TRUE(constraint.ok()) << one.schema << ": " << constraint.error().message;
    for (const std::string& text : one.in)
      EXPECT_TRUE(fits(constraint.value(), text)) << one.schema << " " << text;
    for (const std::string& text : one.out)
      EXPECT_FALSE(fits(constraint.value(), text)) << one.schema << " " << text;
    for (unsigned seed = 0; seed < 5; ++seed) {
      const auto text = random_text(constraint.value(), seed, 3000);
      if (!text) continue;  // values of any kind may go on for long
      EXPECT_TRUE(fits(constraint.value(), *text)) << one.schema << " " << *text;
      EXPECT_TRUE(JsonDocument::parse(*text, "value", {.max_bytes = 1 << 24, .max_depth = 4096}).ok() ||
                  text->find("\":") != std::string::npos)
          << one.schema << " " << *text;
    }
  }
}

TEST(JsonSchema, Types) {
  check({{R"({"type":"null"})", {"null"}, {"nul", "0", "\"null\""}},
         {R"({"type":"boolean"})", {"true", "false"}, {"1", "True"}},
         {R"({"type":"integer"})", {"0", "-1", "123"}, {"01", "-0", "1.0", "1e3", "+1"}},
         {R"({"type":"number"})", {"0", "-0.5", "1.25", "1e5", "2.5E-7"}, {".5", "1.", "1e", "--1", "-0"}},
         {R"({"type":"string"})",
          {R"("")", R"("aé日")", R"("\n\u00e9\"\ud83d\ude00")"},
          {R"(")", "\"\n\"", R"("\x")", R"("\ud83d")", R"("\ude00")"}},
         {R"({"type":["string","null"]})", {"null", R"("a")"}, {"1"}},
         {R"({"type":"string","nullable":true})", {"null", R"("a")"}, {"1"}},
         {R"(true)", {"1", "[]", "{}", R"({"a":[1,{"b":null}]})"}, {"", "{", "[1,]"}},
         {R"({"type":"object"})", {"{}", R"({"a": 1, "b": [true]})"}, {"[]", R"({"a"})", R"({"a":1,})"}},
         {R"({"type":"array"})", {"[]", "[1, \"a\",{}]", "[\n  1\n]"}, {"[", "[1 2]"}}});
}

TEST(JsonSchema, Numbers) {
  check(
      {{R"({"type":"integer","format":"int8","minimum":-5})", {"-5", "127"}, {"-6", "128", "1.5"}},
       {R"({"type":"number","format":"uint16"})", {"0", "65535"}, {"-1", "65536", "1.5"}},
       {R"({"type":"number","format":"double"})", {"-1.5"}, {"x"}},
       {R"({"type":"integer","minimum":3,"maximum":120})",
        {"3", "9", "10", "99", "100", "120"},
        {"2", "121", "0", "-5", "1000"}},
       {R"({"type":"integer","minimum":-15,"maximum":7})",
        {"-15", "-1", "0", "7"},
        {"-16", "8", "-20", "10"}},
       {R"({"type":"integer","exclusiveMinimum":-3,"exclusiveMaximum":-1})", {"-2"}, {"-3", "-1", "0", "2"}},
       {R"({"type":"integer","minimum":0.5,"maximum":2.5})", {"1", "2"}, {"0", "3"}},
       {R"({"type":"integer","multipleOf":7,"minimum":10})", {"14", "21", "700"}, {"7", "15", "0"}},
       {R"({"type":"integer","multipleOf":250})", {"0", "250", "-500", "1000"}, {"25", "300"}},
       {R"({"multipleOf":0.01,"type":"number"})", {"1", "1.5", "-2.25"}, {"1.255", "1e3"}},
       {R"({"type":"number","minimum":0.25,"maximum":10.5})",
        {"0.25", "0.250", "0.3", "1", "10.5", "10.49", "9.99"},
        {"0.2", "0.249", "10.51", "11", "-1", "0"}},
       {R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":1})",
        {"0.5", "0.0001", "0.999"},
        {"0", "0.0", "1", "1.0", "-0.5"}},
       {R"({"type":"number","minimum":-2.5,"exclusiveMaximum":0})",
        {"-2.5", "-0.1", "-1"},
        {"-2.51", "0", "-0.0", "-3"}},
       {R"({"type":"number","minimum":5,"maximum":5})", {"5", "5.0"}, {"5.1", "4"}},
       {R"({"type":"integer","minimum":99999999999999999999})",
        {"99999999999999999999"},
        {"99999999999999999998", "1"}}});
}

TEST(JsonSchema, Strings) {
  check(
      {{R"({"type":"string","minLength":2,"maxLength":3})",
        {R"("ab")", R"("日本é")", R"("\n\u00e9")"},
        {R"("a")", R"("abcd")", R"("")"}},
       {R"({"type":"string","pattern":"^[a-z]+[0-9]?$"})",
        {R"("abc")", R"("a1")"},
        {R"("")", R"("1")", R"("a12")"}},
       {R"({"type":"string","pattern":"x\"y"})", {R"("ax\"yb")"}, {R"("xy")"}},
       {R"({"type":"string","pattern":"a","maxLength":2,"minLength":2})",
        {R"("ab")", R"("ba")"},
        {R"("a")", R"("bb")", R"("aab")"}},
       {R"({"type":"string","format":"date"})", {R"("2024-02-28")"}, {R"("2024-02-30")", R"("2024-13-01")"}},
       {R"({"type":"string","format":"date-time"})",
        {R"("2024-12-31T23:59:59Z")", R"("2024-12-31T23:59:59.5+01:00")"},
        {R"("2024-12-31")"}},
       {R"({"type":"string","format":"uuid"})",
        {R"("123e4567-e89b-12d3-a456-426614174000")"},
        {R"("123e4567")"}},
       {R"({"type":"string","format":"email"})", {R"("a.b@example.org")"}, {R"("a.b")", R"("@x")"}},
       {R"({"type":"string","format":"ipv4"})", {R"("192.168.0.255")"}, {R"("192.168.0.256")", R"("1.2.3")"}},
       {R"({"allOf":[{"type":"string","pattern":"^a"},{"pattern":"b$"}]})",
        {R"("ab")", R"("axxb")"},
        {R"("a")", R"("b")"}}});
}

TEST(JsonSchema, ListedValues) {
  check({{R"({"enum":["a","ab",1,null,{"k":[true]}]})",
          {R"("a")", R"("ab")", "1", "null", R"({"k":[true]})"},
          {R"("b")", "2"}},
         {R"({"const":"x\"y"})", {R"("x\"y")"}, {R"("xy")"}},
         {R"({"type":"string","enum":["a",1,"bcd"],"maxLength":2})", {R"("a")"}, {"1", R"("bcd")"}},
         {R"({"enum":[1,2.0,3],"minimum":2})", {"2.0", "3"}, {"1"}},
         {R"({"const":null})", {"null"}, {"0"}}});
}

TEST(JsonSchema, Objects) {
  check(
      {{R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},"required":["b"],"additionalProperties":false})",
        {R"({"b":true})", R"({"a": 1, "b": false})", R"({"a":1,"b":true,"c":null})", "{\n  \"b\": true\n}"},
        {"{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,"d":1})", R"({"b":true,})", R"({,"b":true})",
         R"({"b":true,"b":true})"}},
       {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
        {"{}", R"({"a":1})", R"({"a":1,"b":true})", R"({"zz":true,"ab":false})"},
        {R"({"a":true})", R"({"b":1})", R"({"b":true,"a":1})"}},
       {R"({"type":"object","patternProperties":{"^n":{"type":"integer"},"s$":{"maximum":9}},"additionalProperties":false})",
        {R"({"n":12})", R"({"ns":3})", R"({"s":7,"n1":99})", R"({"s":"text"})"},
        {R"({"ns":12})", R"({"x":1})", R"({"n":"a"})"}},
       {R"({"type":"object","propertyNames":{"pattern":"^[ab]+$"},"additionalProperties":{"type":"null"}})",
        {"{}", R"({"ab":null})"},
        {R"({"c":null})"}},
       {R"({"type":"object","propertyNames":{"enum":["ab","c"]},"additionalProperties":{"type":"null"}})",
        {"{}", R"({"c":null})", R"({"c":null,"ab":null})"},
        {R"({"a":null})", R"({"abc":null})"}},
       {R"({"type":"object","propertyNames":{"anyOf":[{"const":"a"},{"$ref":"#/$defs/b"}]},"$defs":{"b":{"type":"string","enum":["b\"",1]}}})",
        {R"({"a":1})", R"({"b\"":1})"},
        {R"({"c":null})", R"({"1":null})", R"({"b":null})"}},
       {R"({"type":"object","propertyNames":{"type":"integer"}})", {"{}"}, {R"({"1":null})"}},
       {R"({"enum":[{"a":1},{"b":1}],"propertyNames":{"const":"b"}})", {R"({"b":1})"}, {R"({"a":1})"}},
       {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2},"c":{"const":3}},"minProperties":2,"maxProperties":2,"additionalProperties":false})",
        {R"({"a":1,"b":2})", R"({"a":1,"c":3})", R"({"b":2,"c":3})"},
        {R"({"a":1})", R"({"a":1,"b":2,"c":3})", "{}"}},
       {R"({"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"const":0}})",
        {R"({"x":0})", R"({"x":0,"y":0})"},
        {"{}", R"({"x":0,"y":0,"z":0})"}},
       {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]},{"properties":{"a":{"minimum":5},"b":{"const":1}}}]})",
        {R"({"a":5})", R"({"a":7,"b":1})"},
        {"{}", R"({"a":4})", R"({"a":5,"b":2})"}}});
}

TEST(JsonSchema, Arrays) {
  check({{R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
          {"[1]", "[1,2]", "[1, 2,3]"},
          {"[]", "[1,2,3,4]", "[true]"}},
         {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3}})",
          {"[]", "[1]", "[1,2]", "[1,2,3,3]"},
          {"[2]", "[1,3]", "[1,2,2]"}},
         {R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":false,"minItems":2})",
          {"[1,2]"},
          {"[1]", "[]", "[1,2,3]"}},
         {R"({"type":"array","items":[{"const":1}],"additionalItems":false})", {"[]", "[1]"}, {"[1,1]"}},
         {R"({"type":"array","maxItems":0})", {"[]"}, {"[1]"}}});
}

TEST(JsonSchema, AlternativesAndReferences) {
  check(
      {{R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})",
        {"12", R"("a")"},
        {R"("ab")", "true"}},
       {R"({"type":"object","required":["k"],"properties":{"k":true},"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["x"]},{"properties":{"k":{"const":"b"}}}],"additionalProperties":false})",
        {R"({"k":"b"})"},
        {R"({"k":"a"})", R"({"k":"c"})"}},
       {R"({"oneOf":[{"type":"integer"},{"type":"string"}]})", {"1", R"("a")"}, {"true"}},
       {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["v"],"additionalProperties":false}}})",
        {R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"},
        {R"({"kids":[]})", R"({"v":1,"kids":[1]})"}},
       {R"({"$ref":"#node","$defs":{"a~b/c":{"$anchor":"node","const":1}}})", {"1"}, {"2"}},
       {R"({"$ref":"#x","$defs":{"a":{"enum":[{"$anchor":"x","const":2}]},"enum":{"$anchor":"x","const":1}}})",
        {"1"},
        {"2"}},
       {R"({"$ref":"#/$defs/a~0b~1c","$defs":{"a~b/c":{"const":1}}})", {"1"}, {"2"}}});
}

TEST(JsonSchema, ToolCallsAreElements) {
  const auto constraint = schema(
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","maximum":9},"tags":{"type":"array","items":{"enum":["a","b"]}},"o":{"type":"object","properties":{"x":{"type":"boolean"}},"required":["x"],"additionalProperties":false}},"required":["city"],"additionalProperties":false})",
      ValueStyle::kToolCall);
  ASSERT_TRUE(constraint.ok()) << constraint.error().message;
  const std::string ns = "\xFF", text_ns = "]<]minimax[>[";
  EXPECT_TRUE(fits(constraint.value(), ns + "<city>a < \"b\" ]<]mini" + ns + "</city>"));
  EXPECT_TRUE(fits(constraint.value(), ns + "<city>x" + ns + "</city>" + ns + "<days>7" + ns + "</days>" +
                                           ns + "<tags>" + ns + "<item>a" + ns + "</item>" + ns + "</tags>" +
                                           ns + "<o>" + ns + "<x>true" + ns + "</x>" + ns + "</o>"));
  EXPECT_FALSE(fits(constraint.value(), ns + "<city>a" + text_ns + ns + "</city>"));
  EXPECT_FALSE(fits(constraint.value(), ns + "<days>7" + ns + "</days>"));
  EXPECT_FALSE(fits(constraint.value(), ns + "<city>x" + ns + "</city>" + ns + "<days>12" + ns + "</days>"));
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"properties":{"a":{"not":{"type":"null"}}}})", "keyword not at #/properties/a"},
      {R"({"if":{"type":"null"},"then":false})", "keyword if at #"},
      {R"({"type":"array","uniqueItems":true})", "keyword uniqueItems at #"},
      {R"({"contains":{"const":1}})", "keyword contains at #"},
      {R"({"dependentRequired":{"a":["b"]}})", "keyword dependentRequired at #"},
      {R"({"unevaluatedProperties":false})", "keyword unevaluatedProperties"},
      {R"({"items":{"nonsense":1}})", "keyword nonsense at #/items is not a keyword"},
      {R"({"type":"whatever"})", "keyword type at # is"},
      {R"({"format":"klingon"})", "keyword format at # is \"klingon\""},
      {R"x({"pattern":"(?=a)"})x",
       "keyword pattern at # cannot be read: a look-ahead but where the text begins is not supported, at "
       "byte 0"},
      {R"({"$ref":"http://example.org/x"})", "only references into the schema itself"},
      {R"({"$ref":"#/$defs/none"})", "which is not there"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       "alternatives 0 and 1, and a value might fit both"},
      {R"({"type":"number","multipleOf":0.3})", "keyword multipleOf"},
      {R"({"properties":{"a":{"$id":"x"}}})", "keyword $id at #/properties/a"},
      {R"([])", "no object"},
      {R"(false)", "cannot be satisfied"},
      {R"({"type":"string","minLength":5,"maxLength":4})", "cannot be satisfied"},
      {R"({"type":"integer","minimum":5,"maximum":4})", "cannot be satisfied"},
      {R"({"type":"string","pattern":"^a{5}$","maxLength":3})", "cannot be satisfied"},
      {R"({"enum":[1,2],"type":"string"})", "cannot be satisfied"},
      {R"({"allOf":[{"type":"string"},{"type":"null"}]})", "cannot be satisfied"},
      {R"({"type":"object","properties":{"a":false},"required":["a"]})", "cannot be satisfied"},
      {R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}}})",
       "cannot be satisfied"},
      {R"({"type":"integer","multipleOf":7,"minimum":8,"maximum":13})", "cannot be satisfied"},
      {R"({"type":"object","propertyNames":"a"})", "at #/propertyNames is no object"},
      {R"({"type":"object","minProperties":2})", "keyword minProperties at # asks for several members"},
  };
  for (const auto& [text, message] : cases) {
    const auto made = schema(text);
    ASSERT_FALSE(made.ok()) << text;
    EXPECT_THAT(made.error().message, HasSubstr(message)) << text;
  }
}

// Whatever looks at a keyword first, and whatever stands beside it.
TEST(JsonSchema, KeywordsOfTheWrongKindAreRefused) {
  constexpr std::pair<const char*, const char*> kKeywords[] = {
      {"enum", R"({"a":1})"},  {"required", R"({"a":1})"},    {"allOf", R"({"a":1})"},
      {"anyOf", R"({"a":1})"}, {"oneOf", R"({"a":1})"},       {"prefixItems", R"({"a":1})"},
      {"anyOf", "true"},       {"patternProperties", "[{}]"}, {"properties", "[{}]"},
  };
  constexpr const char* kPlaces[] = {
      R"({@})",
      R"({"type":"object",@})",
      R"({"type":"array",@})",
      R"({"const":{"a":1},@})",
      R"({"enum":[[1],{"a":1}],"allOf":[{@}]})",
      R"({"oneOf":[{"type":"object","required":["a"]},{"type":"object",@}]})",
      R"({"oneOf":[{"const":{"a":1}},{@}]})",
      R"({"type":"object","properties":{"a":{"type":"string",@}},"required":["a"]})",
  };
  for (const auto& [keyword, value] : kKeywords)
    for (const std::string place : kPlaces) {
      const size_t at = place.find('@');
      const std::string text = place.substr(0, at) + "\"" + keyword + "\":" + value + place.substr(at + 1);
      const auto made = schema(text);
      ASSERT_FALSE(made.ok()) << text;
      EXPECT_THAT(made.error().message, HasSubstr(std::string("keyword ") + keyword + " at #")) << text;
    }
  // As drafts before 4 wrote it.
  EXPECT_TRUE(schema(R"({"properties":{"a":{"type":"string","required":true}}})").ok());
}

TEST(JsonSchema, AnyObjectEndsAndReads) {
  auto grammar = std::make_shared<Grammar>();
  const NodeId root = add_json_object(*grammar);
  ASSERT_TRUE(grammar->finish(root).ok());
  const auto constraint = Constraint::create(grammar, small_vocabulary());
  ASSERT_TRUE(constraint.ok());
  EXPECT_TRUE(fits(constraint.value(), R"({"a": {"b": [1, 2, {}]}})"));
  EXPECT_FALSE(fits(constraint.value(), "[]"));
}

}  // namespace
}  // namespace sparrow
