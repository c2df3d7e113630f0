// SPDX-License-Identifier: Apache-2.0
// Reasoning: what is inside the thinking tags, what is not, and which tags are just text.
#include <gtest/gtest.h>

#include "support/output_cases.h"

namespace sparrow {
namespace {

OutputCase unset(std::string name, std::string text, std::string reasoning, std::string content) {
  return {.name = std::move(name),
          .text = std::move(text),
          .expected = {.reasoning = std::move(reasoning), .content = std::move(content), .tool_calls = {}}};
}

OutputCase enabled(std::string name, std::string text, std::string reasoning, std::string content) {
  OutputCase test = unset(std::move(name), std::move(text), std::move(reasoning), std::move(content));
  test.starts_in_reasoning = true;
  return test;
}

class ReasoningCase : public testing::TestWithParam<OutputCase> {};

TEST_P(ReasoningCase, ParsesTheSameInEveryChunking) {
  expect_parses(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Enabled, ReasoningCase,
    testing::Values(
        enabled("PlanThenAnswer", "plan</mm:think>ans", "plan", "ans"),
        enabled("NoClosingTag", "still thinking", "still thinking", ""),
        enabled("OpeningTagAgainAtOnceIsStripped", "<mm:think>plan</mm:think>ans", "plan", "ans"),
        enabled("TwoOpeningTagsAtOnceAreStripped", "<mm:think><mm:think>plan</mm:think>ans", "plan", "ans"),
        enabled("OpeningTagLaterIsReasoningText", "a<mm:think>b</mm:think>ans", "a<mm:think>b", "ans"),
        enabled("BlanksAfterTheOpeningTagAreKept", "\n  plan\n</mm:think>\n\nans\n", "\n  plan\n",
                "\n\nans\n"),
        enabled("ClosingTagFirst", "</mm:think>ans", "", "ans"),
        enabled("BlankThenClosingTag", "\n</mm:think>ans", "\n", "ans"),
        enabled("SecondBlockIsText", "a</mm:think>b<mm:think>c</mm:think>d", "a", "b<mm:think>c</mm:think>d"),
        enabled("SecondClosingTagIsText", "a</mm:think></mm:think>b", "a", "</mm:think>b"),
        enabled("PartOfAClosingTagAtTheEnd", "plan</mm:thi", "plan</mm:thi", ""),
        enabled("PartOfAnOpeningTagOnly", "<mm:thi", "<mm:thi", ""),
        enabled("AlmostTags", "a<b</mm:thinkx<mm:think</mm:think>c", "a<b</mm:thinkx<mm:think", "c"),
        enabled("AngleBeforeTheClosingTag", "1 <</mm:think>2", "1 <", "2"),
        enabled("ToolMarkupInReasoningIsNoCall",
                "@<tool_call>@<invoke name=\"f\">@</invoke>@</tool_call></mm:think>x",
                "@<tool_call>@<invoke name=\"f\">@</invoke>@</tool_call>", "x"),
        enabled("Empty", "", "", ""), enabled("Umlauts", "für</mm:think>größer 🐦", "für", "größer 🐦")),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    NotEnabled, ReasoningCase,
    testing::Values(
        unset("BlockThenAnswer", "<mm:think>plan</mm:think>ans", "plan", "ans"),
        unset("TextBeforeTheBlock", "pre<mm:think>plan</mm:think>post", "plan", "prepost"),
        unset("BlankTextBeforeTheBlockIsDropped", "\n \n<mm:think>plan</mm:think>ans", "plan", "ans"),
        unset("BlockStaysOpen", "<mm:think>still", "still", ""),
        unset("TextBeforeABlockThatStaysOpen", "pre<mm:think>still", "still", "pre"),
        unset("NoTags", "whole text", "", "whole text"), unset("OnlyBlanks", " \n\t", "", " \n\t"),
        unset("BlanksBeforeText", "\n\n hi", "", "\n\n hi"),
        unset("LeadingClosingTagIsDropped", "</mm:think>ans", "", "ans"),
        unset("BlanksBeforeALeadingClosingTagAreDropped", "\n \n</mm:think>ans", "", "ans"),
        unset("BlanksAfterALeadingClosingTagAreKept", "</mm:think>\n\nans", "", "\n\nans"),
        unset("OnlyOneLeadingClosingTagIsDropped", "</mm:think></mm:think>ans", "", "</mm:think>ans"),
        unset("ClosingTagAfterTextIsText", "XXX</mm:think>YYY", "", "XXX</mm:think>YYY"),
        unset("StrayClosingTagThenABlock", "</mm:think><mm:think>plan</mm:think>ans", "plan", "ans"),
        unset("StrayClosingTagBlanksThenABlock", "</mm:think>\n<mm:think>plan</mm:think>ans", "plan", "ans"),
        unset("StrayClosingTagTextThenABlock", "</mm:think>a<mm:think>plan</mm:think>b", "plan", "ab"),
        unset("TwoOpeningTagsInARow", "<mm:think><mm:think>plan</mm:think>ans", "plan", "ans"),
        unset("SecondOpeningTagLaterIsReasoningText", "<mm:think>a<mm:think>b</mm:think>c", "a<mm:think>b",
              "c"),
        unset("SecondBlockIsText", "<mm:think>a</mm:think>b<mm:think>c</mm:think>d", "a",
              "b<mm:think>c</mm:think>d"),
        unset("BlanksInsideAndAfterTheBlockAreKept", "<mm:think>\n plan \n</mm:think>\n\nans", "\n plan \n",
              "\n\nans"),
        unset("EmptyBlock", "<mm:think></mm:think>ans", "", "ans"),
        unset("PartOfAnOpeningTagAtTheEnd", "text <mm:th", "", "text <mm:th"),
        unset("PartOfALeadingClosingTagOnly", " </mm:th", "", " </mm:th"),
        unset("AlmostTags", "<mm:thinks> <mm:think <</mm:think>", "", "<mm:thinks> <mm:think <</mm:think>"),
        unset("BracketAtTheEnd", "a[0]", "", "a[0]"),
        unset("PartOfAMarkerAtTheEnd", "a ]<]mini", "", "a ]<]mini"),
        unset("MarkerThenAThinkingTag", "a@<mm:think>b</mm:think>c", "b", "a@c"), unset("Empty", "", "", "")),
    [](const auto& info) { return info.param.name; });

TEST(Reasoning, TagsAreTextWhenReasoningIsNotParsed) {
  OutputCase test =
      unset("", " </mm:think><mm:think>a</mm:think>b", "", " </mm:think><mm:think>a</mm:think>b");
  test.parse_reasoning = false;
  expect_parses(test);
  test.starts_in_reasoning = true;
  expect_parses(test);
}

TEST(Reasoning, ThinkingTagsInAnArgumentAreItsText) {
  expect_parses(
      {.name = "",
       .text = "@<tool_call>@<invoke name=\"f\">@<a><mm:think>x</mm:think>@</a>@</invoke>@</tool_call>",
       .expected = {"", "", {{"f", R"({"a":"<mm:think>x</mm:think>"})"}}}});
}

TEST(Reasoning, BlockAfterAToolCallIsReasoning) {
  expect_parses({.name = "",
                 .text = "a@<tool_call>@<invoke name=\"f\">@</invoke>@</tool_call>\n<mm:think>b</mm:think>c",
                 .expected = {"b", "ac", {{"f", "{}"}}}});
}

TEST(Reasoning, BytesThatAreNotUtf8BecomeReplacementsInEveryChunking) {
  expect_parses(unset("", "\xc3(<mm:think>\xf0\x9f\x98</mm:think>\xff\xe2\x82", "\xEF\xBF\xBD",
                      "\xEF\xBF\xBD(\xEF\xBF\xBD\xEF\xBF\xBD"));
}

int64_t count_reasoning(const std::vector<std::string>& tokens, bool starts_in_reasoning) {
  OutputParser parser({.starts_in_reasoning = starts_in_reasoning});
  std::vector<OutputDelta> deltas;
  for (const std::string& token : tokens) parser.feed(token, deltas);
  parser.finish(deltas);
  return parser.num_reasoning_chunks();
}

TEST(ReasoningTokens, TagsAndContentDoNotCount) {
  EXPECT_EQ(count_reasoning({"<mm:think>", "a", " b", " c", "</mm:think>", "d", "e"}, false), 3);
  EXPECT_EQ(count_reasoning({"a", " b", "</mm:think>", "d"}, true), 2);
  EXPECT_EQ(count_reasoning({"a", "b"}, false), 0);
  EXPECT_EQ(count_reasoning({"</mm:think>", "a"}, true), 0);
}

TEST(ReasoningTokens, TagSpeltInManyTokensDoesNotCount) {
  EXPECT_EQ(count_reasoning({"<", "mm", ":think", ">", "a", "b", "<", "/", "mm:", "think>", "c"}, false), 2);
  EXPECT_EQ(count_reasoning({"<mm", ":thinka", "b<", "c</mm", ":think>", "d"}, false), 0) << "no tag at all";
}

TEST(ReasoningTokens, TokenWithAnyByteOfReasoningCounts) {
  EXPECT_EQ(count_reasoning({"<mm:think>a", "b", "c</mm:think>d", "e"}, false), 3);
  EXPECT_EQ(count_reasoning({"a<", "/mm:thinkX", "b"}, true), 3);
}

TEST(ReasoningTokens, TokenWithHalfACharacterCountsOnce) {
  EXPECT_EQ(
      count_reasoning({"a", "\xf0\x9f", "\x90\xa6", "", "b", "</mm:think>", "\xf0\x9f", "\x90\xa6"}, true),
      5);
  EXPECT_EQ(count_reasoning({"a", "\xf0\x9f"}, true), 2) << "the replacement is reasoning too";
}

}  // namespace
}  // namespace sparrow
