// SPDX-License-Identifier: Apache-2.0
// Messages: the prompt is the one that the same chat has, and what is refused is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strf.h"
#include "server/anthropic/messages.h"
#include "support/server/api_answers.h"

namespace sparrow::anthropic {
namespace {

using testing::HasSubstr;

struct SameChat {
  const char* name;
  std::string body, chat;
  friend void PrintTo(const SameChat& it, std::ostream* out) { *out << it.name; }
};

const std::string kOff = R"(,"chat_template_kwargs":{"thinking_mode":"disabled"})";
const std::string kUser = R"({"role":"user","content":"hi"})";
const std::string kUse =
    R"({"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"text","text":"so"},)"
    R"({"type":"tool_use","id":"t1","name":"f","input":{"n":3}},{"type":"tool_use","id":"t2","name":"f","input":{}}]})";
const std::string kCall =
    R"({"role":"assistant","content":"so","reasoning_content":"hm","tool_calls":[{"id":"t1","type":"function",)"
    R"("function":{"name":"f","arguments":"{\"n\":3}"}},{"id":"t2","type":"function",)"
    R"("function":{"name":"f","arguments":"{}"}}]})";

const SameChat kSame[] = {
    {"Text", R"("messages":[{"role":"user","content":"hi"}])", R"("messages":[)" + kUser + "]" + kOff},
    {"System", R"("system":"Be brief.","messages":[)" + kUser + "]",
     R"("messages":[{"role":"system","content":"Be brief."},)" + kUser + "]" + kOff},
    {"SystemBlocks",
     R"("system":[{"type":"text","text":"A","cache_control":{"type":"ephemeral"}},{"type":"text","text":"B"}],)"
     R"("messages":[)" +
         kUser + "]",
     R"("messages":[{"role":"system","content":"A\n\nB"},)" + kUser + "]" + kOff},
    {"DeferredTools",
     R"("tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"g","description":"d","defer_loading":true,)"
     R"("input_schema":{"type":"object"}}],"messages":[)" +
         kUser + "," + kUse +
         R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[)"
         R"({"type":"tool_reference","tool_name":"g"}]},{"type":"tool_result","tool_use_id":"t2"}]}])",
     R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"messages":[)" +
         kUser + "," + kCall +
         R"(,{"role":"tool","tool_call_id":"t1","content":"{\"name\":\"g\",\"description\":\"d\",)"
         R"(\"parameters\":{\"type\":\"object\"}}\n"},{"role":"tool","tool_call_id":"t2"}])" +
         kOff},
    {"ToolsAndResults",
     R"("tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"n":{"type":"integer"}}},)"
     R"("cache_control":{"type":"ephemeral"}}],"messages":[)" +
         kUser + "," + kUse +
         R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"four"},)"
         R"({"type":"tool_result","tool_use_id":"t2","is_error":true,"content":[{"type":"text","text":"no"}]},)"
         R"({"type":"text","text":"and?"}]}])",
     R"("tools":[{"type":"function","function":{"name":"f","description":"d",)"
     R"("parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}],"messages":[)" +
         kUser + "," + kCall +
         R"(,{"role":"tool","tool_call_id":"t1","content":"four"},{"role":"tool","tool_call_id":"t2",)"
         R"("content":"Error: no"},{"role":"user","content":"and?"}])" +
         kOff},
    {"ResultsInTheOrderOfTheirEnd",
     R"("messages":[)" + kUser + "," + kUse +
         R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t2","content":"two"},)"
         R"({"type":"tool_result","tool_use_id":"t1","content":"one"},{"type":"text","text":"and?"}]}])",
     R"("messages":[)" + kUser + "," + kCall +
         R"(,{"role":"tool","content":"one"},{"role":"tool","content":"two"},{"role":"user","content":"and?"}])" +
         kOff},
    {"EmptyResult",
     R"("messages":[)" + kUser + "," + kUse +
         R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1"},)"
         R"({"type":"tool_result","tool_use_id":"t2","content":[]}]}])",
     R"("messages":[)" + kUser + "," + kCall +
         R"(,{"role":"tool","tool_call_id":"t1","content":""},)"
         R"({"role":"tool","tool_call_id":"t2","content":""}])" +
         kOff},
    {"Prefill", R"("messages":[)" + kUser + R"(,{"role":"assistant","content":"The answer is"}])",
     R"("continue_final_message":true,"messages":[)" + kUser +
         R"(,{"role":"assistant","content":"The answer is"}])" + kOff},
    {"Thinking", R"("thinking":{"type":"enabled","budget_tokens":5},"messages":[)" + kUser + "]",
     R"("messages":[)" + kUser + R"(],"chat_template_kwargs":{"thinking_mode":"enabled"})"},
    {"Adaptive", R"("thinking":{"type":"adaptive"},"messages":[)" + kUser + "]",
     R"("messages":[)" + kUser + R"(],"chat_template_kwargs":{"thinking_mode":"adaptive"})"},
};

class MessagesPrompt : public test::ApiAnswers, public testing::WithParamInterface<SameChat> {};

TEST_P(MessagesPrompt, IsThatOfTheSameChat) {
  const std::string expected = prompt(openai::kChatApi, GetParam().chat);
  EXPECT_THAT(expected, testing::Not(testing::StartsWith("error")));
  EXPECT_EQ(prompt(kMessagesApi, R"("max_tokens":9,)" + GetParam().body), expected);
}

INSTANTIATE_TEST_SUITE_P(Messages, MessagesPrompt, testing::ValuesIn(kSame),
                         [](const auto& info) { return info.param.name; });

struct Bad {
  const char *name, *body, *field, *message;
  friend void PrintTo(const Bad& it, std::ostream* out) { *out << it.name; }
};

#define HI R"("max_tokens":9,"messages":[{"role":"user","content":"x"}])"
#define BLOCK(block) R"("max_tokens":9,"messages":[{"role":"user","content":[)" block "]}]"

const Bad kBad[] = {
    {"NoMaxTokens", R"("messages":[{"role":"user","content":"x"}])", "max_tokens", "missing"},
    {"NoTokens", R"("max_tokens":0,"messages":[{"role":"user","content":"x"}])", "max_tokens", "got 0"},
    {"TooManyTokens", R"("max_tokens":99999,"messages":[{"role":"user","content":"x"}])", "max_tokens",
     "maximum context length"},
    {"NoMessages", R"("max_tokens":9)", "messages", "missing"},
    {"EmptyMessages", R"("max_tokens":9,"messages":[])", "messages", "at least one message"},
    {"Role", R"("max_tokens":9,"messages":[{"role":"tool","content":"x"}])", "messages[0].role", "\"tool\""},
    {"Content", R"("max_tokens":9,"messages":[{"role":"user","content":3}])", "messages[0].content", "got 3"},
    {"FieldOfAMessage", R"("max_tokens":9,"messages":[{"role":"user","content":"x","name":"y"}])",
     "messages[0].name", "not a field"},
    {"Block", BLOCK(R"({"type":"document","source":{}})"), "messages[0].content[0].type", "\"document\""},
    {"ReferenceToNoTool",
     BLOCK(
         R"({"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"g"}]})"),
     "messages[0].content[0].content[0].tool_name", "one of the tools"},
    {"ReferenceOutsideAResult", BLOCK(R"({"type":"tool_reference","tool_name":"g"})"),
     "messages[0].content[0].type", "in a tool's result"},
    {"FieldOfABlock", BLOCK(R"({"type":"text","text":"x","foo":1})"), "messages[0].content[0].foo",
     "text block"},
    {"Image", BLOCK(R"({"type":"image","source":{"type":"url","url":"http://x/y.png"}})"),
     "messages[0].content[0].type", "images"},
    {"UseOfAUser", BLOCK(R"({"type":"tool_use","id":"t","name":"f","input":{}})"),
     "messages[0].content[0].type", "role user"},
    {"ResultWithoutId", BLOCK(R"({"type":"tool_result","content":"x"})"),
     "messages[0].content[0].tool_use_id", "missing"},
    {"ResultOfNoCall",
     R"("max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"x"},)"
     R"({"type":"tool_result","tool_use_id":"t","content":"x"}]}])",
     "messages[0].content[1].tool_use_id", "messages[0].content[1].tool_use_id must be the id of a call"},
    {"CallWithoutResult",
     R"("max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
     R"({"type":"text","text":"so"},{"type":"tool_use","id":"t","name":"f","input":{}}]},)"
     R"({"role":"user","content":"x"}])",
     "messages[1].content[1].id", "messages[1].content[1].id must have a result before the next turn"},
    {"Input",
     R"("max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f",)"
     R"("input":"x"}]}])",
     "messages[0].content[0].input", "must be an object"},
    {"System", HI R"(,"system":[{"type":"image"}])", "system[0].type", "must be text"},
    {"HostedTool", HI R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}])", "tools[0].type",
     "no tools of its own"},
    {"ToolWithoutSchema", HI R"(,"tools":[{"name":"f"}])", "tools[0].input_schema", "missing"},
    {"ToolSchema", HI R"(,"tools":[{"name":"f","input_schema":[]}])", "tools[0].input_schema",
     "tools[0].input_schema must be an object"},
    {"ToolName", HI R"(,"tools":[{"name":"","input_schema":{}}])", "tools[0].name", "tools[0].name"},
    {"Choice", HI R"(,"tool_choice":{"type":"tool","name":"g"},"tools":[{"name":"f","input_schema":{}}])",
     "tool_choice.name", "must be the name of one of the tools"},
    {"ChoiceType", HI R"(,"tool_choice":{"type":"some"})", "tool_choice.type", "\"some\""},
    {"AnyWithoutTools", HI R"(,"tool_choice":{"type":"any"})", "tool_choice", "needs tools"},
    {"Budget", HI R"(,"thinking":{"type":"enabled","budget_tokens":9})", "thinking.budget_tokens",
     "below max_tokens"},
    {"ThinkingType", HI R"(,"thinking":{"type":"deep"})", "thinking.type", "\"deep\""},
    {"Stops", HI R"(,"stop_sequences":"x")", "stop_sequences", "must be"},
    {"EmptyStop", HI R"(,"stop_sequences":[""])", "stop_sequences[0]", "stop_sequences[0] must be"},
    {"OtherName", HI R"(,"stop":["x"])", "stop", "use stop_sequences"},
    {"Temperature", HI R"(,"temperature":"hot")", "temperature", "\"hot\""},
    {"Unknown", HI R"(,"foo":1)", "foo", "is not a field of this request"},
    {"Servers", HI R"(,"mcp_servers":[{"url":"x"}])", "mcp_servers", "no tools of its own"},
    {"Metadata", HI R"(,"metadata":{"foo":1})", "metadata.foo", "not a field"},
    {"Thread", HI R"(,"thread":{"type":"create"})", "thread", "send all of it"},
    {"Context", HI R"(,"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]})",
     "context_management.edits[0].type", "not supported"},
    {"ContextKind", HI R"(,"context_management":3)", "context_management", "must be an object, got 3"},
    {"EditsKind", HI R"(,"context_management":{"edits":{"a":1}})", "context_management.edits",
     "must be a list, got {\"a\": 1}"},
    {"ToolsBesideAReference",
     BLOCK(
         R"({"type":"tool_result","tool_use_id":"c","content":[{"type":"tool_reference","tool_name":"g"}]})") R"(,"tools":{"a":1})",
     "tools", "must be a list, got {\"a\": 1}"},
    {"MediaType", BLOCK(R"({"type":"image","source":{"type":"base64","media_type":"png","data":"AAAA"}})"),
     "messages[0].content[0].source.media_type", "such as image/png, got \"png\""},
    {"FieldOfAnImage", BLOCK(R"({"type":"image","foo":1})"), "messages[0].content[0].foo",
     "a field of an image block, got 1"},
};

class BadMessages : public test::ApiAnswers, public testing::WithParamInterface<Bad> {};

TEST_P(BadMessages, AreRefusedByFieldAndValue) {
  const Error got = error(kMessagesApi, GetParam().body);
  EXPECT_EQ(got.field, GetParam().field) << got.message;
  EXPECT_THAT(got.message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Messages, BadMessages, testing::ValuesIn(kBad),
                         [](const auto& info) { return info.param.name; });

using MessagesRequests = test::ApiAnswers;

TEST_F(MessagesRequests, WhatClientsSendAlongIsTaken) {
  for (const char* more :
       {R"("metadata":{"user_id":"u"})", R"("service_tier":"auto")",
        R"("cache_control":{"type":"ephemeral"})", R"("output_config":{"effort":"high"})",
        R"("speed":"standard")", R"("container":null)", R"("mcp_servers":[])", R"("top_k":5)",
        R"("temperature":1.0)", R"("tool_choice":{"type":"auto"})",
        R"("context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"}]})",
        R"("stream":true)", R"("thinking":{"type":"disabled"})", R"("stop_sequences":[])", R"("tools":[])"})
    EXPECT_THAT(prompt(kMessagesApi, std::string(HI ",") + more), HasSubstr("x")) << more;
}

TEST_F(MessagesRequests, TokensAreCountedAsTheyWouldRun) {
  const std::string messages = R"("messages":[{"role":"user","content":"the quick brown fox"}])";
  const auto prepared = openai::prepare(kMessagesApi, "{\"max_tokens\":9," + messages + "}", model_);
  ASSERT_TRUE(prepared.ok());
  EXPECT_EQ(openai::prepare(kCountApi, "{" + messages + "}", model_).value()->counted,
            strf(R"({{"input_tokens":{}}})", prepared.value()->num_prompt_tokens()));
  EXPECT_EQ(openai::prepare(kCountApi, "{}", model_).error().field, "messages");
}

// What a thought of another provider's looks like is not for this model to read.
TEST_F(MessagesRequests, EncryptedThoughtsOfOthersAreLeftOut) {
  EXPECT_THAT(
      prompt(kMessagesApi,
             R"("max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
             R"({"type":"redacted_thinking","data":"zzzz"},{"type":"text","text":"y"}]},)"
             R"({"role":"user","content":"z"}])"),
      testing::Not(HasSubstr("zzzz")));
}

}  // namespace
}  // namespace sparrow::anthropic
