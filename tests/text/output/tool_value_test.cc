// SPDX-License-Identifier: Apache-2.0
// Arguments typed by their schema. Every case goes through the parser in all chunkings.
#include <gtest/gtest.h>

#include "support/output_cases.h"
#include "text/output/tool_number.h"

namespace sparrow {
namespace {

// The parameter p with this schema, written like this, becomes this JSON. A second schema document holds
// $defs.
struct ValueCase {
  std::string name, schema, text, json;
  std::string defs = "{}";
};
std::ostream& operator<<(std::ostream& out, const ValueCase& test) {
  return out << test.name;
}

class ToolValueCase : public testing::TestWithParam<ValueCase> {};

TEST_P(ToolValueCase, BecomesTheJson) {
  const ValueCase& test = GetParam();
  expect_parses({.name = test.name,
                 .text = "@<tool_call>@<invoke name=\"f\">@<p>" + test.text + "@</p>@</invoke>@</tool_call>",
                 .expected = {"", "", {{"f", "{\"p\":" + test.json + "}"}}},
                 .parameters = "{\"properties\":{\"p\":" + test.schema + "},\"$defs\":" + test.defs + "}"});
}

#define SPARROW_CASES(suite, ...)                                              \
  INSTANTIATE_TEST_SUITE_P(suite, ToolValueCase, testing::Values(__VA_ARGS__), \
                           [](const auto& info) { return info.param.name; })
using V = ValueCase;

constexpr const char* kString = R"({"type":"string"})";
constexpr const char* kInteger = R"({"type":"integer"})";
constexpr const char* kNumber = R"({"type":"number"})";
constexpr const char* kBoolean = R"({"type":"boolean"})";
constexpr const char* kObject = R"({"type":"object"})";
constexpr const char* kArray = R"({"type":"array"})";
constexpr const char* kMaybeString = R"({"type":["string","null"]})";
constexpr const char* kMaybeInteger = R"({"type":["integer","null"]})";
constexpr const char* kNothing = "{}";

SPARROW_CASES(Strings, V{"Plain", kString, "42", R"("42")"}, V{"True", kString, "true", R"("true")"},
              V{"WhitespaceAtTheEnd", kString, "a \n", R"("a \n")"}, V{"Untyped", kNothing, "42", R"("42")"},
              V{"UntypedBoolean", "true", "42", R"("42")"},
              V{"UnknownType", R"({"type":"mystery"})", "42", R"("42")"},
              V{"UntypedEmpty", kNothing, "", R"("")"}, V{"UntypedBlank", kNothing, " \n", R"(" \n")"},
              V{"EnumOfStrings", R"({"type":"string","enum":["a","b"]})", "c", R"("c")"});

SPARROW_CASES(Null, V{"OfAString", kString, "null", R"("null")"},
              V{"OfAStringOrNull", kMaybeString, "null", "null"},
              V{"OfAStringOrNullAnyCase", kMaybeString, "NULL", "null"},
              V{"StartOfIt", kMaybeString, "nul", R"("nul")"},
              V{"LongerThanIt", kMaybeString, "nullable", R"("nullable")"},
              V{"BlankBeforeIt", kMaybeString, " null", R"(" null")"},
              V{"BlankAfterIt", kMaybeString, "null\n", R"("null\n")"},
              V{"OfNullOrString", R"({"type":["null","string"]})", "null", "null"},
              V{"OfAnInteger", kInteger, "null", "null"},
              V{"OfAnIntegerWithBlanks", kInteger, "\nnull ", "null"},
              V{"OfANumber", kNumber, "Null", "null"}, V{"OfABoolean", kBoolean, "null", "null"},
              V{"OfAnObject", kObject, "null", "null"}, V{"OfAnArray", kArray, "null", "null"},
              V{"Untyped", kNothing, "null", "null"}, V{"UntypedWithBlanks", kNothing, " null", R"(" null")"},
              V{"OfAStringOrInteger", R"({"type":["string","integer"]})", "null", R"("null")"},
              V{"OpenApiNullable", R"({"type":"string","nullable":true})", "null", "null"},
              V{"AnyOfWithNull", R"({"anyOf":[{"type":"string"},{"type":"null"}]})", "null", "null"},
              V{"EmptyStringOrNull", kMaybeString, "", R"("")"},
              V{"EmptyIntegerOrNull", kMaybeInteger, "", "null"},
              V{"EmptyArrayOrNull", R"({"type":["array","null"]})", "", "null"},
              V{"BlankArrayOrNull", R"({"type":["array","null"]})", "\n", "[]"},
              V{"EmptyInteger", kInteger, "", R"("")"}, V{"OnlyNull", R"({"type":"null"})", "null", "null"},
              V{"OnlyNullOther", R"({"type":"null"})", "x", R"("x")"});

SPARROW_CASES(Integers, V{"Plain", kInteger, "42", "42"}, V{"Negative", kInteger, "-7", "-7"},
              V{"Plus", kInteger, "+7", "7"}, V{"LeadingZeros", kInteger, "018956", "18956"},
              V{"Zero", kInteger, "000", "0"}, V{"MinusZero", kInteger, "-0", "0"},
              V{"Blanks", kInteger, " \n42\t", "42"},
              V{"Uint64", kInteger, "18446744073709551615", "18446744073709551615"},
              V{"ManyDigits", kInteger, "-123456789012345678901234567890", "-123456789012345678901234567890"},
              V{"WholeFraction", kInteger, "5.0", "5"}, V{"Exponent", kInteger, "1e3", "1000"},
              V{"FractionWithExponent", kInteger, "-1.50E1", "-15"},
              V{"NegativeExponent", kInteger, "1200e-2", "12"},
              V{"TrueFraction", kInteger, "5.5", R"("5.5")"},
              V{"SmallFraction", kInteger, "5e-1", R"("5e-1")"},
              V{"HugeExponent", kInteger, "1e999999999999", R"("1e999999999999")"},
              V{"ZeroHugeExponent", kInteger, "0e999", "0"}, V{"Underscore", kInteger, "1_000", R"("1_000")"},
              V{"Comma", kInteger, "1,000", R"("1,000")"}, V{"OtherDigits", kInteger, "４２", R"("４２")"},
              V{"Hex", kInteger, "0x10", R"("0x10")"}, V{"Words", kInteger, "forty-two", R"("forty-two")"},
              V{"SignOnly", kInteger, "-", R"("-")"}, V{"PointOnly", kInteger, ".", R"(".")"},
              V{"TwoNumbers", kInteger, "1 2", R"("1 2")"});

SPARROW_CASES(Numbers, V{"Float", kNumber, "2.5", "2.5"}, V{"StaysAFloat", kNumber, "5.0", "5.0"},
              V{"Integer", kNumber, "5", "5"},
              V{"Above2To53", kNumber, "9007199254740993", "9007199254740993"},
              V{"ManyDigits", kNumber, "0.1234567890123456789", "0.1234567890123456789"},
              V{"Exponent", kNumber, "-1E+5", "-1E+5"}, V{"PointAtTheEnd", kNumber, "5.", "5.0"},
              V{"PointFirst", kNumber, "-.5", "-0.5"}, V{"Plus", kNumber, "+1.0", "1.0"},
              V{"LeadingZeros", kNumber, "007.5", "7.5"}, V{"Blanks", kNumber, " 1.5\n", "1.5"},
              V{"Tiny", kNumber, "1e-400", "1e-400"}, V{"Overflow", kNumber, "1e400", R"("1e400")"},
              V{"LargestDouble", kNumber, "1.7976931348623157e308", "1.7976931348623157e308"},
              V{"JustTooLarge", kNumber, "1.8e308", R"("1.8e308")"}, V{"Inf", kNumber, "inf", R"("inf")"},
              V{"Infinity", kNumber, "Infinity", R"("Infinity")"}, V{"NaN", kNumber, "NaN", R"("NaN")"},
              V{"Underscore", kNumber, "1_000", R"("1_000")"}, V{"Percent", kNumber, "5%", R"("5%")"});

SPARROW_CASES(Booleans, V{"True", kBoolean, "true", "true"}, V{"False", kBoolean, "False", "false"},
              V{"Upper", kBoolean, " TRUE\n", "true"}, V{"One", kBoolean, "1", "true"},
              V{"Zero", kBoolean, "0", "false"}, V{"Yes", kBoolean, "yes", R"("yes")"},
              V{"Off", kBoolean, "off", R"("off")"});

SPARROW_CASES(TypeNames, V{"Int", R"({"type":"int"})", "1", "1"}, V{"Uint8", R"({"type":"UInt8"})", "1", "1"},
              V{"Float", R"({"type":"float"})", "1.5", "1.5"},
              V{"Double", R"({"type":"double"})", "1.5", "1.5"}, V{"Str", R"({"type":"str"})", "1", R"("1")"},
              V{"Bool", R"({"type":"bool"})", "true", "true"}, V{"Dict", R"({"type":"dict"})", "", "{}"},
              V{"Map", R"({"type":"map"})", "", "{}"}, V{"List", R"({"type":"list"})", "", "[]"},
              V{"Varchar", R"({"type":"varchar"})", "1", R"("1")"});

SPARROW_CASES(
    Containers, V{"EmptyObject", kObject, "", "{}"}, V{"BlankObject", kObject, " \n", "{}"},
    V{"EmptyArray", kArray, "", "[]"}, V{"BlankArray", kArray, "\n", "[]"},
    V{"JsonObject", kObject, R"( {"a": [1, 1e2], "b": 12345678901234567890123} )",
      R"({"a": [1, 1e2], "b": 12345678901234567890123})"},
    V{"JsonArray", kArray, R"(["a", {"b": null}])", R"(["a", {"b": null}])"},
    V{"JsonOfAnotherType", kObject, "[1,2]", "[1,2]"},
    V{"PatternProperties", R"({"type":"object","patternProperties":{"^k":{"type":"boolean"}}})",
      "@<k1>false@</k1>@<x>1@</x>", R"({"k1":false,"x":"1"})"},
    V{"NotJson", kObject, "{a: 1}", R"("{a: 1}")"},
    V{"JsonWithAKeyTwice", kObject, R"({"a":1,"a":2})", R"({"a":2})"},
    V{"JsonThatOverflows", kArray, "[1e999]", R"("[1e999]")"}, V{"CutOffJson", kArray, "[1, 2", R"("[1, 2")"},
    V{"Elements", R"({"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"integer"}}})",
      "\n@<city>Singapore@</city>\n@<zip>018956@</zip>\n", R"({"city":"Singapore","zip":18956})"},
    V{"UndeclaredMember", R"({"type":"object","properties":{"n":{"type":"integer"}}})",
      "@<m>1@</m>@<n>2@</n>", R"({"m":"1","n":2})"},
    V{"AdditionalProperties", R"({"type":"object","additionalProperties":{"type":"integer"}})",
      "@<score>42@</score>@<rank>7@</rank>", R"({"score":42,"rank":7})"},
    V{"InferredFromProperties", R"({"properties":{"n":{"type":"integer"}}})", "@<n>2@</n>", R"({"n":2})"},
    V{"InferredFromItems", R"({"items":{"type":"integer"}})", "@<item>1@</item>@<item>2@</item>", "[1,2]"},
    V{"Items", R"({"type":"array","items":{"type":"integer"}})", "\n@<item>1@</item>\n@<item>x@</item>\n",
      R"([1,"x"])"},
    V{"ItemsOfAnyName", R"({"type":"array","items":{"type":"integer"}})", "@<x>1@</x>@<x>2@</x>", "[1,2]"},
    V{"EmptyItem", R"({"type":"array","items":{"type":["integer","null"]}})",
      "@<item>@</item>@<item>2@</item>", "[null,2]"},
    V{"ArrayOfObjects",
      R"({"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"},"qty":{"type":"integer"}}}})",
      "@<item>@<sku>book@</sku>@<qty>2@</qty>@</item>@<item>@<qty>5@</qty>@</item>",
      R"([{"sku":"book","qty":2},{"qty":5}])"},
    V{"ArrayOfArrays", R"({"type":"array","items":{"type":"array","items":{"type":"integer"}}})",
      "@<item>@<item>1@</item>@<item>2@</item>@</item>@<item>@</item>", "[[1,2],[]]"},
    V{"ArrayOfStrings", R"({"type":"array","items":{"type":"string"}})",
      "@<item> null@</item>@<item>@</item>", R"([" null",""])"},
    V{"TupleByPrefixItems",
      R"({"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":{"type":"boolean"}})",
      "@<item>1@</item>@<item>1@</item>@<item>1@</item>", R"(["1",1,true])"},
    V{"TupleByItems",
      R"({"type":"array","items":[{"type":"string"},{"type":"integer"}],"additionalItems":{"type":"boolean"}})",
      "@<item>1@</item>@<item>1@</item>@<item>1@</item>", R"(["1",1,true])"},
    V{"RepeatedMemberWithSchema", R"({"type":"object","properties":{"n":{"type":"integer"}}})",
      "@<n>1@</n>@<n>2@</n>", R"({"n":1})"},
    V{"RepeatedMemberWithoutSchema", kObject, "@<a>1@</a>@<b>x@</b>@<a>2@</a>", R"({"a":["1","2"],"b":"x"})"},
    V{"ElementsForAPrimitive", kInteger, "@<a>1@</a>", R"({"a":"1"})"});

SPARROW_CASES(Untyped,
              V{"Elements", kNothing, "@<a>1@</a>@<a>2@</a>@<b>null@</b>", R"({"a":["1","2"],"b":null})"},
              V{"Items", kNothing, "@<item>1@</item>\n@<item>@<x>2@</x>@</item>", R"(["1",{"x":"2"}])"},
              V{"OneItem", kNothing, "@<item>1@</item>", R"(["1"])"},
              V{"ItemsAndOthers", kNothing, "@<item>1@</item>@<x>2@</x>@<item>3@</item>",
                R"({"item":["1","3"],"x":"2"})"});

SPARROW_CASES(MixedText,
              V{"Untyped", kNothing, "text before @<child>value@</child> text after",
                R"({"child":"value","$text":"text before  text after"})"},
              V{"ObjectWithoutSchema", kObject, "a@<b>c@</b>d", R"({"b":"c","$text":"ad"})"},
              V{"ObjectWithSchema", R"({"type":"object","properties":{"n":{"type":"integer"}}})",
                "a@<n>1@</n>d", R"({"n":1,"$text":"ad"})"},
              V{"NameIsTaken", kNothing, "text@<$text>child text@</$text>@<child>value@</child>",
                R"({"$text":"child text","child":"value","$$text":"text"})"},
              V{"NameIsTakenWithSchema", R"({"type":"object","properties":{"$text":{"type":"integer"}}})",
                "x@<$text>1@</$text>", R"({"$text":1,"$$text":"x"})"},
              V{"Array", R"({"type":"array","items":{"type":"integer"}})", "@<item>1@</item> 2", "[1,2]"},
              V{"UntypedItems", kNothing, "@<item>1@</item>x", R"({"item":"1","$text":"x"})"},
              V{"BlanksAreNoText", kNothing, "\n@<child>value@</child>\n", R"({"child":"value"})"});

constexpr const char* kTagged =
    R"({"oneOf":[{"properties":{"k":{"const":"num"},"v":{"type":"integer"}},"required":["k","v"]},)"
    R"({"properties":{"k":{"const":"zip"},"v":{"type":"string"}},"required":["k","v"]},)"
    R"({"properties":{"k":{"enum":["flags"]},"v":{"type":"array","items":{"type":"boolean"}}},"required":["k","v"]}]})";
constexpr const char* kTaggedBeside =
    R"({"type":"object","properties":{"k":{"type":"string"}},"anyOf":[{"properties":{"k":{"const":"zip"},"v":{"type":"string"}}},)"
    R"({"properties":{"k":{"const":"num"},"v":{"type":"integer"}}}]})";
constexpr const char* kShortOrLong =
    R"({"anyOf":[{"type":"integer","minimum":10,"maximum":12},{"type":"string","pattern":"^[0-9]{3}$"}]})";
constexpr const char* kIntegerOrString = R"({"type":["integer","string"]})";
constexpr const char* kNumberOrString = R"({"type":["number","string"]})";
constexpr const char* kBooleanOrString = R"({"type":["boolean","string"]})";

SPARROW_CASES(Tagged, V{"Integer", kTagged, "@<k>num@</k>@<v>5@</v>", R"({"k":"num","v":5})"},
              V{"Text", kTagged, "@<k>zip@</k>@<v>02134@</v>", R"({"k":"zip","v":"02134"})"},
              V{"List", kTagged, "@<k>flags@</k>@<v>@<item>false@</item>@</v>",
                R"({"k":"flags","v":[false]})"},
              V{"TagLast", kTagged, "@<v>02134@</v>@<k>zip@</k>", R"({"v":"02134","k":"zip"})"},
              V{"NoTag", kTagged, "@<v>02134@</v>", R"({"v":2134})"},
              V{"TagBeforeTypes", kTaggedBeside, "@<k>num@</k>@<v>+7@</v>", R"({"k":"num","v":7})"},
              V{"Beside", kTaggedBeside, "@<k>zip@</k>@<v>02134@</v>", R"({"k":"zip","v":"02134"})"});

SPARROW_CASES(
    NumberOrText, V{"LeadingZero", kIntegerOrString, "02134", R"("02134")"},
    V{"Plus", kIntegerOrString, "+1", R"("+1")"}, V{"Blank", kIntegerOrString, " 1", R"(" 1")"},
    V{"Fraction", kIntegerOrString, "5.0", R"("5.0")"}, V{"Negative", kIntegerOrString, "-12", "-12"},
    V{"Number", kNumberOrString, "-1.50e3", "-1.50e3"}, V{"NumberPoint", kNumberOrString, "5.", R"("5.")"},
    V{"One", kBooleanOrString, "1", R"("1")"}, V{"True", kBooleanOrString, "true", "true"},
    V{"Capitals", kBooleanOrString, "True", R"("True")"},
    V{"OneOfBooleanOrInteger", R"({"type":["boolean","integer"]})", "1", "1"},
    V{"WithinBounds", kShortOrLong, "11", "11"}, V{"OutOfBounds", kShortOrLong, "123", R"("123")"},
    V{"FitsNeither", kShortOrLong, "13", R"("13")"},
    V{"PatternFirst", R"({"anyOf":[{"type":"string","pattern":"^[a-z]+$"},{"type":"integer"}]})", "42", "42"},
    V{"ListsByTheirElements",
      R"({"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"array","items":{"type":"string"}}]})",
      "@<item>5@</item>@<item>x@</item>", R"(["5","x"])"});

constexpr const char* kItemOrObject =
    R"({"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"object","properties":{"n":{"type":"integer"}}}]})";

SPARROW_CASES(
    Unions, V{"StringFirst", R"({"type":["string","integer"]})", "42", R"("42")"},
    V{"IntegerFirst", R"({"type":["integer","string"]})", "42", "42"},
    V{"IntegerFirstText", R"({"type":["integer","string"]})", "x", R"("x")"},
    V{"BooleanThenInteger", R"({"type":["boolean","integer"]})", "2", "2"},
    V{"AnyOfInOrder", R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", "42", "42"},
    V{"OneOfStringFirst", R"({"oneOf":[{"type":"string"},{"type":"integer"}]})", "42", R"("42")"},
    V{"ItemsAreTheArray", kItemOrObject, "@<item>1@</item>@<item>2@</item>", "[1,2]"},
    V{"OthersAreTheObject", kItemOrObject, "@<n>1@</n>", R"({"n":1})"},
    V{"MixedAreTheObject", kItemOrObject, "@<item>1@</item>@<n>1@</n>", R"({"item":"1","n":1})"},
    V{"ItemsAreTheArrayAlsoAfterTheObject", R"({"anyOf":[{"type":"object"},{"type":"array"}]})",
      "@<item>1@</item>", R"(["1"])"},
    V{"ElementsAreNeverAString",
      R"({"anyOf":[{"type":"string"},{"type":"object","properties":{"n":{"type":"integer"}}}]})",
      "@<n>1@</n>", R"({"n":1})"},
    V{"RepeatedMemberOfTheObject", kItemOrObject, "@<n>1@</n>@<n>2@</n>", R"({"n":1})"},
    V{"ObjectThatDeclaresItem", R"({"anyOf":[{"type":"array"},{"properties":{"item":{"type":"integer"}}}]})",
      "@<item>1@</item>", R"({"item":1})"},
    V{"TextAndElementsAreNeverAString", R"({"anyOf":[{"type":"string"},{"type":"object"}]})", "a@<n>1@</n>",
      R"({"n":"1","$text":"a"})"},
    V{"TextOfAStringOrObject", R"({"anyOf":[{"type":"string"},{"type":"object"}]})", "42", R"("42")"},
    V{"ArrayOrNullOfAnyName", R"({"anyOf":[{"type":"array","items":{"type":"integer"}},{"type":"null"}]})",
      "@<x>1@</x>", "[1]"},
    V{"ObjectThatDeclaresTheMembers",
      R"({"anyOf":[{"type":"object","properties":{"a":{"type":"integer"}}},{"type":"object","properties":{"b":{"type":"integer"}}}]})",
      "@<b>1@</b>", R"({"b":1})"},
    V{"JsonForTheObjectOnly", R"({"type":["object","string"]})", "42", R"("42")"},
    V{"JsonForTheObject", R"({"type":["object","string"]})", R"({"a":1})", R"({"a":1})"},
    V{"ListedStringNextToANumber", R"({"anyOf":[{"type":"string","enum":["auto"]},{"type":"integer"}]})", "5",
      "5"},
    V{"ListedString", R"({"anyOf":[{"type":"string","enum":["auto"]},{"type":"integer"}]})", "auto",
      R"("auto")"},
    V{"NestedAnyOf", R"({"anyOf":[{"anyOf":[{"type":"integer"},{"type":"boolean"}]},{"type":"string"}]})",
      "true", "true"});

SPARROW_CASES(Listed, V{"EnumNumber", R"({"enum":[1,2.5,"x"]})", "2.5", "2.5"},
              V{"EnumString", R"({"enum":[1,2.5,"x"]})", "x", R"("x")"},
              V{"EnumOther", R"({"enum":[1,2.5,"x"]})", "3", R"("3")"},
              V{"EnumOfDigits", R"({"enum":["1","2"]})", "1", R"("1")"},
              V{"EnumNull", R"({"enum":["a",null]})", "null", "null"},
              V{"EnumWithoutNull", R"({"enum":["a","b"]})", "null", R"("null")"},
              V{"ConstBoolean", R"({"const":true})", "true", "true"},
              V{"ConstOther", R"({"const":true})", "yes", R"("yes")"},
              V{"ConstNull", R"({"const":null})", "null", "null"},
              V{"ConstList", R"({"const":[1,2]})", "@<item>1@</item>@<item>2@</item>", "[1,2]"},
              V{"ConstListOfOthers", R"({"const":[true,null]})", "@<item>true@</item>@<item>null@</item>",
                "[true,null]"},
              V{"EnumLists", R"({"enum":[[1],[2]]})", "@<item>2@</item>", "[2]"},
              V{"ConstEmptyList", R"({"const":[]})", "", "[]"},
              V{"ConstEmptyObject", R"({"const":{}})", "", "{}"},
              V{"ConstElements", R"({"const":{"a":1,"b":[]}})", "@<a>1@</a>@<b>@</b>", R"({"a":1,"b":[]})"},
              V{"ConstElementsOfAType", R"({"type":"object","properties":{"a":{}},"const":{"a":1}})",
                "@<a>1@</a>", R"({"a":1})"},
              V{"ConstOtherElements", R"({"const":{"a":1}})", "@<a>2@</a>", R"({"a":"2"})"},
              V{"ConstObject", R"({"const":{"a":[1,null]}})", R"({"a":[1,null]})", R"({"a":[1,null]})"});

constexpr const char* kDefs =
    R"({"N":{"type":"integer"},"Tree":{"type":"object","properties":{"n":{"$ref":"#/$defs/N"},"kids":{"type":"array","items":{"$ref":"#/$defs/Tree"}}}},
        "Loop":{"$ref":"#/$defs/Loop"},"a/b":{"type":"integer"},"Both":{"allOf":[{"$ref":"#/$defs/Both"},{"$ref":"#/$defs/Both"}]}})";

SPARROW_CASES(
    References, V{"Local", R"({"$ref":"#/$defs/N"})", "1", "1", kDefs},
    V{"Recursive", R"({"$ref":"#/$defs/Tree"})",
      "@<n>1@</n>@<kids>@<item>@<n>2@</n>@<kids>@</kids>@</item>@</kids>",
      R"({"n":1,"kids":[{"n":2,"kids":[]}]})", kDefs},
    V{"ToItself", R"({"$ref":"#/$defs/Loop"})", "1", R"("1")", kDefs},
    V{"ToItselfTwice", R"({"$ref":"#/$defs/Both"})", "1", R"("1")", kDefs},
    V{"Escaped", R"({"$ref":"#/$defs/a~1b"})", "1", "1", kDefs},
    V{"PercentEncoded", R"({"$ref":"#/%24defs/a~1b%"})", "1", R"("1")", kDefs},
    V{"PercentEncodedName", R"({"$ref":"#/%24defs/%4e"})", "1", "1", kDefs},
    V{"Anchor", R"({"$ref":"#flag"})", "false", "false", R"({"F":{"$anchor":"flag","type":"boolean"}})"},
    V{"Missing", R"({"$ref":"#/$defs/Nope"})", "1", R"("1")", kDefs},
    V{"Remote", R"({"$ref":"https://example.com/x"})", "1", R"("1")", kDefs},
    V{"WithDescription", R"({"$ref":"#/$defs/N","description":"x"})", "1", "1", kDefs},
    V{"AllOf", R"({"allOf":[{"description":"x"},{"$ref":"#/$defs/N"}]})", "1", "1", kDefs},
    V{"AllOfMergesMembers",
      R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer"}}},{"properties":{"b":{"type":"boolean"}}}]})",
      "@<a>1@</a>@<b>1@</b>", R"({"a":1,"b":true})"},
    V{"AllOfMergesOneMember",
      R"({"allOf":[{"properties":{"a":{"description":"x"}}},{"properties":{"a":{"type":"integer"}}}]})",
      "@<a>1@</a>", R"({"a":1})"},
    V{"AnyOfWithReference", R"({"anyOf":[{"$ref":"#/$defs/N"},{"type":"null"}]})", "1", "1", kDefs});

TEST(ToolParameters, AdditionalPropertiesOfTheParametersThemselvesAreUsed) {
  expect_parses(
      {.name = "",
       .text = "@<tool_call>@<invoke name=\"f\">@<n>1@</n>@<m>2@</m>@</invoke>@</tool_call>",
       .expected = {"", "", {{"f", R"({"n":"1","m":2})"}}},
       .parameters = R"({"properties":{"n":{"type":"string"}},"additionalProperties":{"type":"integer"}})"});
}

TEST(ToolParameters, ReferenceForTheParametersThemselvesIsResolved) {
  expect_parses(
      {.name = "",
       .text = "@<tool_call>@<invoke name=\"f\">@<n>1@</n>@</invoke>@</tool_call>",
       .expected = {"", "", {{"f", R"({"n":1})"}}},
       .parameters = R"({"$ref":"#/$defs/P","$defs":{"P":{"properties":{"n":{"type":"integer"}}}}})"});
}

TEST(ToolParameters, OrderWithNestedValuesOfEveryKind) {
  const char* order = R"({"type":"object","properties":{
      "user_id":{"type":"integer"},"urgent":{"type":"boolean"},"note":{"type":"string"},
      "shipping":{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"integer"}}},
      "items":{"type":"array","items":{"type":"object","properties":{"sku":{"type":"string"},"qty":{"type":"integer"}}}},
      "metadata":{"type":"object","additionalProperties":{"type":"integer"}},
      "tags":{"type":"object"},"x_array":{"type":"array","items":{"type":"integer"}}}})";
  expect_parses(
      {.name = "",
       .text = "@<tool_call>@<invoke name=\"f\">@<user_id>42@</user_id>@<urgent>true@</urgent>@<note>Front "
               "desk.@</note>"
               "@<shipping>\n@<city>Singapore@</city>\n@<zip>018956@</zip>\n@</shipping>"
               "@<items>@<item>@<sku>book-1@</sku>@<qty>2@</qty>@</item>@<item>@<sku>pen-7@</sku>@<qty>5@</"
               "qty>@</item>@</items>"
               "@<metadata>@<score>42@</score>@<rank>7@</rank>@</metadata>@<tags>@<tag>a@</tag>@<tag>b@</"
               "tag>@</tags>"
               "@<x_array>@<x>1@</x>@<x>2@</x>@</x_array>@<unknown>@<a>1@</a>@<a>2@</a>@</unknown>@</"
               "invoke>@</tool_call>",
       .expected =
           {"",
            "",
            {{"f",
              R"({"user_id":42,"urgent":true,"note":"Front desk.","shipping":{"city":"Singapore","zip":18956},)"
              R"("items":[{"sku":"book-1","qty":2},{"sku":"pen-7","qty":5}],"metadata":{"score":42,"rank":7},)"
              R"("tags":{"tag":["a","b"]},"x_array":[1,2],"unknown":{"a":["1","2"]}})"}}},
       .parameters = order});
}

TEST(ToolParameters, SchemaThatBranchesIntoItselfForeverIsReadInBoundedTime) {
  const std::string self = R"({"$ref":"#/$defs/X"})";
  std::string branches = self;
  for (int i = 0; i < 20; ++i) branches += "," + self;
  for (const char* key : {"anyOf", "allOf"})
    expect_parses(
        {.name = "",
         .text = "@<tool_call>@<invoke name=\"f\">@<n>@<a>1@</a>@<b>2@</b>@</n>@</invoke>@</tool_call>",
         .expected = {"", "", {{"f", R"({"n":{"a":"1","b":"2"}})"}}},
         .parameters = R"({"properties":{"n":{"$ref":"#/$defs/X"}},"$defs":{"X":{")" + std::string(key) +
                       "\":[" + branches + "]}}}"});
}

TEST(ToolSetErrors, NameTheFieldThatIsWrong) {
  const auto error_of = [](const char* json) {
    const auto document = JsonDocument::parse(json, "tools");
    const auto tools = ToolSet::from_json(document->root("tools"));
    return tools.ok() ? "" : tools.error().message;
  };
  EXPECT_EQ(error_of("3"), "tools must be a list, got 3");
  EXPECT_EQ(error_of("[3]"), "tools[0] must be an object, got 3");
  EXPECT_EQ(error_of(R"([{"function":{}}])"), "tools[0].function.name is missing");
  EXPECT_EQ(error_of(R"([{"name":5}])"), "tools[0].name must be a string, got 5");
  EXPECT_EQ(error_of(R"([{"name":"f","parameters":7}])"), "");
}

}  // namespace
}  // namespace sparrow
