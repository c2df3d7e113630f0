// SPDX-License-Identifier: Apache-2.0
// Results of calls: brought into the order of the calls by their ids, and refused where they are of none.
#include "text/call_results.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strf.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

// A conversation in short: "user", "c1,c2" for an answer with these calls, "=c1:a" for a result of c1 that
// says a, "answer" for one without calls. "-" stands for no id.
std::string message_of(const std::string& word) {
  const auto id = [](std::string_view name, std::string_view text) {
    return text == "-" ? "" : strf(R"("{}":"{}",)", name, text);
  };
  if (word == "user" || word == "system") return strf(R"({{"role":"{}","content":"x"}})", word);
  if (word == "answer") return R"({"role":"assistant","content":"x"})";
  if (const size_t colon = word.find(':'); colon != std::string::npos)
    return strf(R"({{"role":"tool",{}"content":"{}"}})", id("tool_call_id", word.substr(1, colon - 1)),
                word.substr(colon + 1));
  std::string calls;
  for (size_t at = 0; at < word.size(); at = word.find(',', at) + 1) {
    const size_t end = word.find(',', at);
    calls += strf(R"({}{{{}"function":{{"name":"f"}}}})", calls.empty() ? "" : ",",
                  id("id", word.substr(at, end - at)));
    if (end == std::string::npos) break;
  }
  return strf(R"({{"role":"assistant","tool_calls":[{}]}})", calls);
}

// What the results say, in the order of the prompt, with a blank where other messages are; or the error.
std::string results_of(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ",") + message_of(word);
  const JsonDocument document = JsonDocument::parse("[" + list + "]", "messages").value();
  const auto ordered = in_order_of_calls(document.root("messages"));
  if (!ordered.ok()) {
    EXPECT_THAT(ordered.error().message, testing::StartsWith(ordered.error().field));
    return ordered.error().message;
  }
  EXPECT_EQ(ordered->size(), words.size());
  std::string said;
  for (const Json& message : ordered.value())
    said += message.find("role")->string_view() == "tool" ? message.find("content")->string_view() : " ";
  return said;
}

TEST(CallResults, StandInTheOrderOfTheCalls) {
  EXPECT_EQ(results_of({"user", "c1,c2,c3", "=c1:a", "=c2:b", "=c3:c"}), "  abc");
  EXPECT_EQ(results_of({"user", "c1,c2,c3", "=c3:c", "=c1:a", "=c2:b", "user"}), "  abc ");
  EXPECT_EQ(results_of({"user", "c1", "=c1:a", "c1", "=c1:b", "answer", "user"}), "  a b  ");
}

TEST(CallResults, OfAnswersInARowMayComeTogether) {
  EXPECT_EQ(results_of({"user", "c1", "c2", "=c2:b", "=c1:a"}), "   ab");
}

TEST(CallResults, WithoutIdsAreKnownByTheirPlace) {
  EXPECT_EQ(results_of({"c1,c2", "=-:a", "=-:b"}), " ab");
  EXPECT_EQ(results_of({"-,-", "=-:a", "=-:b"}), " ab");
  EXPECT_EQ(results_of({"-,-", "=x:a", "=y:b"}), " ab");
  EXPECT_EQ(results_of({"c,c", "=c:a", "=c:b"}), " ab");  // an id that a client used twice
}

TEST(CallResults, MayBeOnTheirWay) {
  EXPECT_EQ(results_of({"user", "c1,c2"}), "  ");
  EXPECT_EQ(results_of({"user", "answer", "answer", "user"}), "    ");
}

TEST(CallResults, OfNoCallAreRefused) {
  const char* const id = "].tool_call_id must be the id of a call right before it that has no result yet";
  EXPECT_THAT(results_of({"user", "c1,c2", "=c1:a", "=zz:b"}), HasSubstr(strf("[3{}, got \"zz\"", id)));
  EXPECT_THAT(results_of({"user", "c1,c2", "=c1:a", "=c1:b"}), HasSubstr(strf("[3{}, got \"c1\"", id)));
  EXPECT_THAT(results_of({"=c1:a"}), HasSubstr(strf("[0{}", id)));
  EXPECT_THAT(results_of({"user", "=c1:a"}), HasSubstr(strf("[1{}", id)));
  EXPECT_THAT(results_of({"c1", "=c1:a", "answer", "=c1:a"}), HasSubstr(strf("[3{}", id)));
  const char* const role = "].role must follow a call that has no result yet, got \"tool\"";
  EXPECT_THAT(results_of({"user", "=-:a"}), HasSubstr(strf("[1{}", role)));
  EXPECT_THAT(results_of({"c1", "=-:a", "=-:b"}), HasSubstr(strf("[2{}", role)));
}

TEST(CallResults, ThatAreMissingAreNamedByTheirCall) {
  const auto missing = [](int call, const char* id) {
    return HasSubstr(
        strf("[1].tool_calls[{}].id must have a result before the next turn, got \"{}\"", call, id));
  };
  EXPECT_THAT(results_of({"user", "c1,c2", "=c1:a"}), missing(1, "c2"));
  EXPECT_THAT(results_of({"user", "c1,c2", "=c2:a", "user"}), missing(0, "c1"));
  EXPECT_THAT(results_of({"user", "c1", "user", "=c1:a"}), missing(0, "c1"));
  EXPECT_THAT(results_of({"user", "c1,c2", "=c1:a", "system", "=c2:b"}), missing(1, "c2"));
  EXPECT_THAT(results_of({"user", "c1", "answer", "=c1:a"}), missing(0, "c1"));
  EXPECT_THAT(results_of({"user", "-", "user"}),
              HasSubstr("[1].tool_calls[0] must have a result before the next turn"));
}

}  // namespace
}  // namespace sparrow
