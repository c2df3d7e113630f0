// SPDX-License-Identifier: Apache-2.0
// The structure of tool calls: blocks, invokes, elements; what is cut off, out of place or broken.
#include <gtest/gtest.h>

#include "support/output_cases.h"

namespace sparrow {
namespace {

// Types for the arguments of the cases: a string, one that may be null, an integer, an object, an array.
constexpr const char* kParameters = R"({"type":"object","properties":{
    "s":{"type":"string"}, "m":{"type":["string","null"]}, "n":{"type":"integer"},
    "o":{"type":"object","properties":{"s":{"type":"string"},"n":{"type":"integer"}}},
    "a":{"type":"array","items":{"type":"string"}}}})";

OutputCase tools(std::string name, std::string text, std::string content, std::vector<ParsedToolCall> calls) {
  return {.name = std::move(name),
          .text = std::move(text),
          .expected = {.reasoning = {}, .content = std::move(content), .tool_calls = std::move(calls)},
          .parameters = kParameters};
}

// A whole block with one call of f.
OutputCase call(std::string name, const std::string& body, std::string arguments) {
  return tools(std::move(name), "@<tool_call>\n@<invoke name=\"f\">" + body + "@</invoke>\n@</tool_call>", "",
               {{"f", std::move(arguments)}});
}

class ToolCase : public testing::TestWithParam<OutputCase> {};

TEST_P(ToolCase, ParsesTheSameInEveryChunking) {
  expect_parses(GetParam());
}

#define SPARROW_CASES(suite, ...)                                         \
  INSTANTIATE_TEST_SUITE_P(suite, ToolCase, testing::Values(__VA_ARGS__), \
                           [](const auto& info) { return info.param.name; })

const std::string kPing = "@<invoke name=\"ping\">@</invoke>";

SPARROW_CASES(
    Blocks,  //
    tools("OneCallNoText", "@<tool_call>\n" + kPing + "\n@</tool_call>", "", {{"ping", "{}"}}),
    tools("TextBeforeIsKeptVerbatim", "Let me see.\n\n@<tool_call>" + kPing + "@</tool_call>",
          "Let me see.\n\n", {{"ping", "{}"}}),
    tools("BlankTextBeforeIsKeptVerbatim", " \n@<tool_call>" + kPing + "@</tool_call>", " \n",
          {{"ping", "{}"}}),
    tools("TextAfterIsContent", "a @<tool_call>" + kPing + "@</tool_call>\nDone. \n", "a \nDone. \n",
          {{"ping", "{}"}}),
    tools("BlankTextAfterIsDropped", "a @<tool_call>" + kPing + "@</tool_call> \r\n\t", "a ",
          {{"ping", "{}"}}),
    tools("SeveralCallsAreNumbered",
          "@<tool_call>\n" + kPing + "\n@<invoke name=\"f\">@<s>x@</s>@</invoke>\n@</tool_call>", "",
          {{"ping", "{}"}, {"f", R"({"s":"x"})"}}),
    tools("SeveralBlocks",
          "a@<tool_call>" + kPing + "@</tool_call>\n\n@<tool_call>" + kPing + "@</tool_call>b", "ab",
          {{"ping", "{}"}, {"ping", "{}"}}),
    tools("TextBetweenBlocksIsContent",
          "@<tool_call>" + kPing + "@</tool_call> and \n@<tool_call>" + kPing + "@</tool_call>", " and \n",
          {{"ping", "{}"}, {"ping", "{}"}}),
    tools("TextOutsideAnyInvokeIsSkipped",
          "@<tool_call>first " + kPing + " then @ " + kPing + " so.@</tool_call>", "",
          {{"ping", "{}"}, {"ping", "{}"}}),
    tools("EmptyBlock", "a@<tool_call>@</tool_call>b", "ab", {}),
    tools("BlockWithTextOnly", "a@<tool_call> hm @</tool_call>", "a", {}),
    tools("ForeignElementMakesTheBlockContent", "a@<tool_call>\n@<bad>x@</bad>@</tool_call>b",
          "a@<tool_call>\n@<bad>x@</bad>@</tool_call>b", {}),
    tools("ForeignElementAfterACall", "a@<tool_call>" + kPing + "\n@<bad>x@</bad>@</tool_call>",
          "a@<bad>x@</bad>@</tool_call>", {{"ping", "{}"}}),
    tools("ForeignElementInTheSecondBlock", "@<tool_call>" + kPing + "@</tool_call>@<tool_call>@<bad>",
          "@<tool_call>@<bad>", {{"ping", "{}"}}),
    tools("NestedBlockIsForeign", "@<tool_call>@<tool_call>" + kPing, "@<tool_call>@<tool_call>" + kPing, {}),
    tools("UnknownToolIsForwarded", "@<tool_call>@<invoke name=\"nope\">@<n>1@</n>@</invoke>@</tool_call>",
          "", {{"nope", R"({"n":"1"})"}}));

SPARROW_CASES(NotBlocks,  //
              tools("MarkerAlone", "a @ b", "a @ b", {}), tools("MarkerAtTheEnd", "a @", "a @", {}),
              tools("OtherTag", "@<b>x@</b>", "@<b>x@</b>", {}),
              tools("ClosingTag", "a@</tool_call>b", "a@</tool_call>b", {}),
              tools("InvokeWithoutABlock", kPing, kPing, {}),
              tools("TagWithoutAMarker", "<tool_call>x</tool_call>", "<tool_call>x</tool_call>", {}),
              tools("TagCutOff", "a@<tool_ca", "a@<tool_ca", {}),
              tools("BracketAtTheEnd", "x = a[1]", "x = a[1]", {}),
              tools("BracketsBeforeABlock", "]]<]@<tool_call>" + kPing + "@</tool_call>]", "]]<]]",
                    {{"ping", "{}"}}),
              tools("MarkerBeforeABlock", "@@<tool_call>" + kPing + "@</tool_call>", "@", {{"ping", "{}"}}));

SPARROW_CASES(
    Tags,  //
    tools("SingleQuotes", "@<tool_call>@<invoke name='f'>@</invoke>@</tool_call>", "", {{"f", "{}"}}),
    tools("NoQuotes", "@<tool_call>@<invoke name=f>@</invoke>@</tool_call>", "", {{"f", "{}"}}),
    tools("BlanksInTheInvokeTag", "@<tool_call>@< invoke  name = \" f \" >@</ invoke >@</tool_call>", "",
          {{"f", "{}"}}),
    tools("MoreAttributes", "@<tool_call>@<invoke id=\"1>2\" x name=\"f\" y='z'>@</invoke>@</tool_call>", "",
          {{"f", "{}"}}),
    tools("BlanksAfterTheMarker",
          "@ <tool_call>@\n<invoke name=\"f\">@ <n>1@ </n>@\t</invoke>@  </tool_call>", "",
          {{"f", R"({"n":1})"}}),
    call("BlanksInAParameterTag", "@< n >1@</n >@<s >x@</ s>", R"({"n":1,"s":"x"})"),
    call("ParametersCalledInvokeAndToolCall",
         "@<invoke>a@</invoke>@<tool_call>b@</tool_call>@<o>@<invoke>@<tool_call>c@</tool_call>@</invoke>@</"
         "o>",
         R"({"invoke":"a","tool_call":"b","o":{"invoke":{"tool_call":"c"}}})"),
    call("UnusualParameterNames", "@<it's \"x\">a@</it's \"x\">@<größe 🐦>b@</größe 🐦>@<a]b<c>d@</a]b<c>",
         R"({"it's \"x\"":"a","größe 🐦":"b","a]b<c":"d"})"));

SPARROW_CASES(
    Parameters,  //
    call("None", "", "{}"), call("BlanksOnly", "\n \n", "{}"),
    call("TextBetweenParametersIsSkipped", "so @<s>x@</s> and now @ the @<n>1@</n> done",
         R"({"s":"x","n":1})"),
    call("TheFirstOfTwoStands", "@<n>1@</n>@<n>2@</n>@<s>a@</s>@<s>@<x>b@</x>@</s>", R"({"n":1,"s":"a"})"),
    call("BareMarkerInAValueIsText", "@<s>a@b@ <@@>@</s>", R"({"s":"a@b@ <@@>"})"),
    call("BracketsInAValue", "@<s>a]]<]minimax[>@</s>@<n>]@</n>", R"({"s":"a]]<]minimax[>","n":"]"})"),
    call("StringsAreKeptByteForByte", "@<s>\n \"x\\y\"\t&amp;\x01 größe 🐦 \n@</s>",
         "{\"s\":\"\\n \\\"x\\\\y\\\"\\t&amp;\\u0001 größe 🐦 \\n\"}"),
    call("BlankString", "@<s> \n@</s>", R"({"s":" \n"})"), call("EmptyString", "@<s>@</s>", R"({"s":""})"),
    call("MarkupInsideAStringThatIsBalanced",
         "@<s>like @<b>this@</b> or @<invoke name=\"f\">@</invoke>!@</s>",
         R"({"s":"like @<b>this@</b> or @<invoke name=\"f\">@</invoke>!"})"),
    call("MarkupAfterWhatIsNotNullAnyMore", "@<m>nul@<b>l@</b>@</m>", R"({"m":"nul@<b>l@</b>"})"),
    call("InvokeAfterNullInsideAString", "@<m>null@<invoke name=g>@</invoke>@</m>",
         R"({"m":"null@<invoke name=g>@</invoke>"})"),
    call("ElementsInsteadOfAString", "@<s>\n@<x>1@</x>@</s>", R"({"s":{"x":"1"}})"));

SPARROW_CASES(
    Broken,  //
    tools("EndsInsideAString", "@<tool_call>@<invoke name=\"f\">@<n>1@</n>@<s>rm -rf /tmp/", "",
          {{"f", R"({"n":1,"s":"rm -rf /tmp/)"}}),
    tools("EndsAfterWhatMayBecomeNull", "@<tool_call>@<invoke name=\"f\">@<m>nul", "", {{"f", R"({"m":)"}}),
    tools("EndsAfterABlankThatRulesOutNull", "@<tool_call>@<invoke name=\"f\">@<m>n\n", "",
          {{"f", R"({"m":"n\n)"}}),
    tools("EndsInsideANumber", "@<tool_call>@<invoke name=\"f\">@<n>12", "", {{"f", R"({"n":)"}}),
    tools("EndsInsideANestedObject", "@<tool_call>@<invoke name=\"f\">@<o>@<n>1@</n>@<s>a", "",
          {{"f", R"({"o":{"n":1,"s":"a)"}}),
    tools("EndsAfterAParameter", "@<tool_call>@<invoke name=\"f\">@<n>1@</n>", "", {{"f", R"({"n":1)"}}),
    tools("EndsInsideAClosingTag", "@<tool_call>@<invoke name=\"f\">@<s>a@</s", "", {{"f", R"({"s":"a)"}}),
    tools("EndsAfterTheInvokeTag", "@<tool_call>@<invoke name=\"f\">", "", {{"f", "{"}}),
    tools("EndsInsideTheInvokeTag", "a@<tool_call>@<invoke name=\"f", "a", {}),
    tools("EndsWithABracketThatMayBeginAMarker", "@<tool_call>@<invoke name=\"f\">@<s>a[0]", "",
          {{"f", R"({"s":"a[0)"}}),
    tools("EndsInsideAMarkerInsideAString", "@<tool_call>@<invoke name=\"f\">@<s>a]<]mini", "",
          {{"f", R"({"s":"a)"}}),
    tools("EndsInsideACharacterInsideAString", "@<tool_call>@<invoke name=\"f\">@<s>a\xF0\x9F\x90", "",
          {{"f", R"({"s":"a)"}}),
    tools("EndsInTheSecondCall", "@<tool_call>" + kPing + "@<invoke name=\"f\">@<s>x", "",
          {{"ping", "{}"}, {"f", R"({"s":"x)"}}),
    tools("ClosingMarkerMissing", "a@<tool_call>" + kPing, "a", {{"ping", "{}"}}),
    tools("ClosingMarkerMissingBlanks", "a@<tool_call>" + kPing + "\n  \n", "a", {{"ping", "{}"}}),
    tools("ClosingMarkerCutOff", "a@<tool_call>" + kPing + "\n@</tool_c", "a", {{"ping", "{}"}}),
    tools("ClosingMarkerCutOffInTheMarker", "a@<tool_call>" + kPing + "\n]<]mini", "a", {{"ping", "{}"}}),
    tools("BlockOpenedAtTheEnd", "a@<tool_call>", "a", {}),
    tools("MismatchedClosingTag", "@<tool_call>@<invoke name=\"f\">@<s>x@</t>@</invoke>@</tool_call>b",
          "@</t>@</invoke>@</tool_call>b", {{"f", R"({"s":"x)"}}),
    tools("MismatchedClosingTagOfANumber", "@<tool_call>@<invoke name=\"f\">@<n>5@</m>@</invoke>",
          "5@</m>@</invoke>", {{"f", R"({"n":)"}}),
    tools("MismatchedClosingTagOfWhatMayBecomeNull", "@<tool_call>@<invoke name=\"f\">@<m>nul@</s>",
          "nul@</s>", {{"f", R"({"m":)"}}),
    tools("MismatchedClosingTagAfterABlankThatRulesOutNull",
          "@<tool_call>@<invoke name=\"f\">@<m>nul\n@<tool_call>" + kPing + "@</m>",
          "@<tool_call>" + kPing + "@</m>", {{"f", R"({"m":"nul\n)"}}),
    tools("MismatchedClosingTagInsideAnUntypedParameter",
          "@<tool_call>@<invoke name=\"f\">@<u>@<x>1@</y>@</u>@</invoke>", "@<x>1@</y>@</u>@</invoke>",
          {{"f", R"({"u":)"}}),
    tools("ClosingTagOfAParameterMissing",
          "@<tool_call>@<invoke name=\"f\">@<s>x@<n>1@</n>@</invoke>@</tool_call>",
          "@<n>1@</n>@</invoke>@</tool_call>", {{"f", R"({"s":"x)"}}),
    tools("ClosingTagOfTheInvokeMissing", "@<tool_call>@<invoke name=\"f\">@<n>1@</n>@</tool_call>",
          "@</tool_call>", {{"f", R"({"n":1)"}}),
    tools("InvokeInsideAnInvoke", "@<tool_call>@<invoke name=\"f\">@<n>1@</n>" + kPing, kPing,
          {{"f", R"({"n":1)"}}),
    tools("NamelessInvoke", "a@<tool_call>@<invoke>@<n>1@</n>@</invoke>@</tool_call>",
          "a@<tool_call>@<invoke>@<n>1@</n>@</invoke>@</tool_call>", {}),
    tools("EmptyName", "a@<tool_call>@<invoke name=\" \">@</invoke>",
          "a@<tool_call>@<invoke name=\" \">@</invoke>", {}),
    tools("NamelessInvokeAfterACall", "a@<tool_call>" + kPing + "\n@<invoke >@</invoke>@</tool_call>",
          "a@<invoke >@</invoke>@</tool_call>", {{"ping", "{}"}}),
    tools("QuoteOfTheNameMissing", "@<tool_call>@<invoke name=\"f>@<n>1@</n>",
          "@<tool_call>@<invoke name=\"f>@<n>1@</n>", {}),
    tools("ClosingTagTwice", "@<tool_call>" + kPing + "@</invoke>@</tool_call>", "@</invoke>@</tool_call>",
          {{"ping", "{}"}}),
    tools("RawTextHasNoTagsAnyMore",
          "@<tool_call>@<bad>@</tool_call>@<tool_call>" + kPing + "<mm:think>a</mm:think>",
          "@<tool_call>@<bad>@</tool_call>@<tool_call>" + kPing + "<mm:think>a</mm:think>", {}));

TEST(ToolCalls, MarkupIsTextWhenToolsAreNotParsed) {
  OutputCase test = tools("", "a]@<tool_call>" + kPing + "@</tool_call> \n",
                          "a]@<tool_call>" + kPing + "@</tool_call> \n", {});
  test.parse_tools = false;
  expect_parses(test);
}

TEST(ToolCalls, NestingBeyondTheLimitIsContentNotACrash) {
  std::string body, opened = "@<tool_call>@<invoke name=\"f\">";
  for (int i = 0; i < 100000; ++i) body += with_markers("@<x>");
  const ParsedOutput result = parse_chunks({}, {with_markers(opened) + body});
  ASSERT_EQ(result.tool_calls.size(), 1u);
  EXPECT_EQ(result.tool_calls[0].arguments, R"({"x":)");
  EXPECT_EQ(result.content + with_markers("@<x>"), body)
      << "nothing but the opening tag that was sent is missing";
}

// What has come of a call after each chunk.
std::vector<std::string> arguments_after_each(const char* parameters,
                                              const std::vector<std::string>& chunks) {
  const auto document =
      JsonDocument::parse(std::string(R"([{"name":"f","parameters":)") + parameters + "}]", "tools");
  const auto tool_set = ToolSet::from_json(document->root());
  OutputParser parser({.tools = &tool_set.value()});
  ParsedOutput result;
  std::vector<std::string> out;
  for (const std::string& chunk : chunks) {
    std::vector<OutputDelta> deltas;
    parser.feed(with_markers(chunk), deltas);
    for (const OutputDelta& delta : deltas) result.add(delta);
    out.push_back(result.tool_calls.empty() ? "" : result.tool_calls[0].arguments);
  }
  return out;
}

TEST(ToolCallStreaming, NameComesBeforeAnyArgument) {
  EXPECT_EQ(arguments_after_each(kParameters, {"@<tool_call>@<invoke name=\"f\"", ">"}),
            (std::vector<std::string>{"", "{"}));
}

TEST(ToolCallStreaming, StringsStreamWhileTheyAreGenerated) {
  EXPECT_EQ(arguments_after_each(kParameters,
                                 {"@<tool_call>@<invoke name=\"f\">@<s>", "ab", "c\n", "]", "d", "@</s>"}),
            (std::vector<std::string>{R"({"s":)", R"({"s":"ab)", R"({"s":"abc\n)", R"({"s":"abc\n)",
                                      R"({"s":"abc\n]d)", R"({"s":"abc\n]d")"}));
}

TEST(ToolCallStreaming, NestedObjectsAndArraysStream) {
  EXPECT_EQ(arguments_after_each(kParameters,
                                 {"@<tool_call>@<invoke name=\"f\">@<o>@<n>4", "2@</n>@<s>x", "y@</s>@</o>",
                                  "@<a>@<item>p", "q@</item>@<item>r", "@</item>@</a>", "@</invoke>"}),
            (std::vector<std::string>{
                R"({"o":{"n":)", R"({"o":{"n":42,"s":"x)", R"({"o":{"n":42,"s":"xy"})",
                R"({"o":{"n":42,"s":"xy"},"a":["p)", R"({"o":{"n":42,"s":"xy"},"a":["pq","r)",
                R"({"o":{"n":42,"s":"xy"},"a":["pq","r"])", R"({"o":{"n":42,"s":"xy"},"a":["pq","r"]})"}));
}

TEST(ToolCallStreaming, StringThatMayBeNullWaitsOnlyUntilItCannotBe) {
  const char* nullable = R"({"properties":{"s":{"type":["string","null"]}}})";
  EXPECT_EQ(arguments_after_each(nullable, {"@<tool_call>@<invoke name=\"f\">@<s>", "nu", "ll", "s"}),
            (std::vector<std::string>{R"({"s":)", R"({"s":)", R"({"s":)", R"({"s":"nulls)"}));
  EXPECT_EQ(arguments_after_each(nullable, {"@<tool_call>@<invoke name=\"f\">@<s>", "nu", "\n"}),
            (std::vector<std::string>{R"({"s":)", R"({"s":)", R"({"s":"nu\n)"}));
}

}  // namespace
}  // namespace sparrow
