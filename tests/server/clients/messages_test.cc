// SPDX-License-Identifier: Apache-2.0
// Messages as clients and their frameworks write them, and what Sparrow itself has answered: each becomes the
// prompt that its plain form becomes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using testing::HasSubstr;

class ClientMessages : public OpenAiRequests {
 protected:
  Result<std::unique_ptr<Prepared>> read(const std::string& messages) {
    return prepare(kChatApi, R"({"messages":[)" + messages + "]}", model_);
  }
  std::string prompt(const std::string& messages) {
    const auto prepared = read(messages);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    return prepared.ok() ? tokenizer_.decode(prepared.value()->request.prompts[0]).value() : "";
  }
  static std::string message(std::string_view role, std::string_view text) {
    return strf(R"({{"role":"{}","content":"{}"}},)", role, text);
  }
  const std::string user_ = R"({"role":"user","content":"q"})";
};

TEST_F(ClientMessages, LeadingSystemAndDeveloperMessagesAreJoinedWithABlankLine) {
  const std::string joined = prompt(message("system", "a\\n\\nb\\n\\nc") + user_);
  EXPECT_EQ(prompt(message("system", "a") + message("developer", "b") + message("system", "c") + user_),
            joined);
  EXPECT_EQ(prompt(R"({"role":"system","content":[{"type":"text","text":"a"}]},)" + message("system", "b") +
                   message("system", "") + message("system", "c") + user_),
            joined);
  EXPECT_EQ(prompt(message("root", "r") + message("system", "a") + message("system", "b") + user_),
            prompt(message("root", "r") + message("system", "a\\n\\nb") + user_));
  EXPECT_THAT(joined, HasSubstr("developer\na\n\nb\n\nc[e~["));
}

TEST_F(ClientMessages, ALaterSystemMessageIsReadWhereItStands) {
  const std::string answer = message("assistant", "x");
  EXPECT_EQ(prompt(message("user", "a") + answer + message("system", "s") + user_),
            prompt(message("user", "a") + answer + R"({"role":"user","content":"s\n\nq"})"));
  EXPECT_EQ(prompt(user_ + "," + message("developer", "s") + R"({"role":"system","content":"t"})"),
            prompt(R"({"role":"user","content":"q\n\ns\n\nt"})"));
  EXPECT_EQ(prompt(message("user", "a") + answer + R"({"role":"system","content":"s"})"),
            prompt(message("user", "a") + answer + R"({"role":"user","content":"s"})"));
  // Two messages of a user stay two.
  EXPECT_THAT(prompt(message("user", "a") + user_), HasSubstr("a[e~[\n]~b]user\nq[e~["));
}

TEST_F(ClientMessages, ARootMessageAfterTheFirstPlaceIsRefused) {
  const auto result = read(user_ + R"(,{"role":"root","content":"r"})");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field, "messages[1].role");
  EXPECT_THAT(result.error().message, HasSubstr("first message"));
}

// What was cut off by max_tokens comes back with the history.
TEST_F(ClientMessages, ACallThatWasCutOffGoesInAsText) {
  const auto history = [&](const std::string& arguments) {
    return user_ + strf(R"(,{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function",)"
                        R"("function":{{"name":"f","arguments":{}}}}}]}},)"
                        R"({{"role":"tool","tool_call_id":"c","content":"no"}})",
                        arguments);
  };
  for (const char* cut : {R"("{")", R"("{\"stops\": [\"A")", R"("[]")", R"("5")", R"("{\"a\":1,\"a\":2}")"}) {
    const JsonDocument document = JsonDocument::parse(cut, "arguments").value();
    EXPECT_THAT(prompt(history(cut)), HasSubstr(strf("<arguments>{}]<]minimax[>[</arguments>",
                                                     document.root().as_string().value())));
  }
  EXPECT_EQ(prompt(history(R"("null")")), prompt(history(R"("{}")")));
}

TEST_F(ClientMessages, AToolMessageWithoutContentIsEmptyText) {
  const std::string called =
      user_ + R"(,{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f"}}]},)"
              R"({"role":"tool","tool_call_id":"c")";
  const std::string empty = prompt(called + R"(,"content":""})");
  EXPECT_EQ(prompt(called + R"(,"content":null})"), empty);
  EXPECT_EQ(prompt(called + "}"), empty);
  EXPECT_EQ(prompt(called + R"(,"content":[]})"), empty);
  const std::string text = prompt(called + R"(,"content":"ab"})");
  EXPECT_EQ(prompt(called + R"(,"content":["a",{"type":"text","text":"b"}]})"), text);
  EXPECT_EQ(prompt(called + R"(,"content":[{"type":"input_text","text":"a"},)"
                            R"({"type":"output_text","text":"b","annotations":[]}]})"),
            text);
}

TEST_F(ClientMessages, TextComesUnderTheNamesOfOtherApis) {
  for (const char* part : {R"({"type":"text","text":"q"})", R"({"type":"input_text","text":"q"})",
                           R"({"type":"output_text","text":"q","annotations":[],"logprobs":[]})",
                           R"({"type":"refusal","refusal":"q"})"})
    EXPECT_EQ(prompt(strf(R"({{"role":"user","content":[{}]}})", part)), prompt(user_)) << part;
}

TEST_F(ClientMessages, AThoughtMayBeAPartOfTheContent) {
  const auto answer = [&](const std::string& members) {
    return prompt(user_ + R"(,{"role":"assistant",)" + members + "}," + user_);
  };
  const std::string thought = answer(R"("content":"b","reasoning_content":"why so")");
  EXPECT_EQ(
      answer(
          R"("content":[{"type":"thinking","thinking":"why so","signature":"s"},{"type":"text","text":"b"}])"),
      thought);
  EXPECT_EQ(answer(R"("content":[{"type":"thinking","thinking":[{"type":"text","text":"why "},)"
                   R"({"type":"text","text":"so"}]},{"type":"text","text":"b"}])"),
            thought);
  EXPECT_EQ(answer(R"("content":[{"type":"reasoning","text":"why so"},"b"])"), thought);
  EXPECT_EQ(answer(R"("reasoning_content":"why so","content":[{"type":"thinking","thinking":"why so"},"b"])"),
            thought);
  EXPECT_EQ(
      answer(R"("content":"b","reasoning_details":[{"type":"reasoning.text","index":0,"text":"why so"}])"),
      thought);
  EXPECT_EQ(answer(R"("content":"b","reasoning":"why so","reasoning_details":[{"text":"why so"}])"), thought);
  EXPECT_FALSE(read(R"({"role":"user","content":[{"type":"thinking","thinking":"x"}]})").ok());
  EXPECT_FALSE(read(user_ + R"(,{"role":"assistant","reasoning":"a","content":)"
                            R"([{"type":"thinking","thinking":"b"}]})")
                   .ok())
      << "one of two thoughts would be lost";
}

// Null is how clients spell "absent".
TEST_F(ClientMessages, UnknownMembersMayBeNull) {
  EXPECT_EQ(prompt(R"({"role":"user","content":"q","foo":null})"), prompt(user_));
}

}  // namespace
}  // namespace sparrow::openai
