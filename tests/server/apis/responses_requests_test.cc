// SPDX-License-Identifier: Apache-2.0
// Responses: the prompt is the one that the same chat has, and what is refused is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/responses/responses.h"
#include "support/server/api_answers.h"

namespace sparrow::responses {
namespace {

using testing::HasSubstr;

struct SameChat {
  const char* name;
  std::string body, chat;
  friend void PrintTo(const SameChat& it, std::ostream* out) { *out << it.name; }
};

const std::string kCall =
    R"({"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function",)"
    R"("function":{"name":"f","arguments":"{\"n\":3}"}}]})";
const std::string kItems =
    R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},)"
    R"({"type":"function_call","id":"fc_1","call_id":"c1","name":"f","arguments":"{\"n\":3}","status":"completed"})";

const SameChat kSame[] = {
    {"Text", R"("input":"hi")", R"("messages":[{"role":"user","content":"hi"}])"},
    {"Instructions", R"("instructions":"Be brief.","input":"hi")",
     R"("messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}])"},
    {"Parts",
     R"("input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},)"
     R"({"type":"message","id":"msg_1","status":"completed","role":"assistant",)"
     R"("content":[{"type":"output_text","text":"c","annotations":[],"logprobs":[]}]},{"role":"user","content":"d"}])",
     R"("messages":[{"role":"user","content":"ab"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}])"},
    {"CallAndOutput",
     R"("input":[{"role":"user","content":"hi"},)" + kItems +
         R"(,{"type":"function_call_output","call_id":"c1","output":"four"}],"tools":[{"type":"function","name":"f",)"
         R"("description":"d","parameters":{"type":"object","properties":{"n":{"type":"integer"}}},"strict":false}])",
     R"("messages":[{"role":"user","content":"hi"},)" + kCall +
         R"(,{"role":"tool","tool_call_id":"c1","content":"four"}],"tools":[{"type":"function","function":{"name":"f",)"
         R"("description":"d","parameters":{"type":"object","properties":{"n":{"type":"integer"}}},"strict":false}}])"},
    {"TextAfterACall",
     R"("input":[{"role":"user","content":"hi"},)" + kItems +
         R"(,{"type":"message","role":"assistant","content":"so"},{"type":"function_call_output","call_id":"c1",)"
         R"("output":"four"}])",
     R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"so",)" + kCall.substr(35) +
         R"(,{"role":"tool","tool_call_id":"c1","content":"four"}])"},
    {"OutputOfParts",
     R"("input":[{"role":"user","content":"hi"},)" + kItems +
         R"(,{"type":"function_call_output","call_id":"c1","output":[{"type":"input_text","text":"four"}]}])",
     R"("messages":[{"role":"user","content":"hi"},)" + kCall +
         R"(,{"role":"tool","tool_call_id":"c1","content":"four"}])"},
    {"ToolsOfANamespace",
     R"("input":"hi","tools":[{"type":"namespace","name":"s","description":"All.","tools":[{"type":"function",)"
     R"("name":"f","description":"One.","parameters":{"type":"object"}},{"type":"function","name":"g"}]}])",
     R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"s__f",)"
     R"("description":"All.\n\nOne.","parameters":{"type":"object"}}},{"type":"function","function":{"name":"s__g"}}])"},
    {"CustomTools",
     R"("input":"hi","tools":[{"type":"custom","name":"c","description":"Does.","format":{"type":"text"}},)"
     R"({"type":"custom","name":"l","format":{"type":"grammar","syntax":"lark","definition":"start: A"}},)"
     R"({"type":"custom","name":"r","format":{"type":"grammar","syntax":"regex","definition":"a|b"}}])",
     R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"c",)"
     R"("description":"Does.","parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],)"
     R"("additionalProperties":false},"strict":true}},{"type":"function","function":{"name":"l","description":)"
     R"("The input follows this grammar (Lark):\nstart: A","parameters":{"type":"object","properties":{"input":)"
     R"({"type":"string"}},"required":["input"],"additionalProperties":false},"strict":true}},{"type":"function","function":)"
     R"({"name":"r","parameters":{"type":"object","properties":{"input":{"type":"string","pattern":"^(?:a|b)$"}},)"
     R"("required":["input"],"additionalProperties":false},"strict":true}}])"},
    {"HostedToolsAreLeftOut",
     R"("input":"hi","tools":[{"type":"web_search","external_web_access":false},{"type":"function","name":"f"},)"
     R"({"type":"image_generation"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[)"
     R"({"type":"web_search"},{"type":"function","name":"f"}]})",
     R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}])"},
    {"CallsOfEveryKind",
     R"("input":[{"role":"user","content":"hi"},{"type":"web_search_call","id":"ws_1","status":"completed"},)"
     R"({"type":"function_call","call_id":"c1","name":"g","namespace":"s","arguments":"{}"},)"
     R"({"type":"custom_tool_call","call_id":"c2","name":"c","input":"a \"b\"\n"},)"
     R"({"type":"function_call_output","call_id":"c1","name":"g","namespace":"s","output":"one"},)"
     R"({"type":"custom_tool_call_output","call_id":"c2","output":"two"}])",
     R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[)"
     R"({"id":"c1","type":"function","function":{"name":"s__g","arguments":"{}"}},)"
     R"({"id":"c2","type":"function","function":{"name":"c","arguments":"{\"input\":\"a \\\"b\\\"\\n\"}"}}]},)"
     R"({"role":"tool","tool_call_id":"c1","content":"one"},{"role":"tool","tool_call_id":"c2","content":"two"}])"},
    {"OutputsInTheOrderOfTheirEnd",
     R"("input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)"
     R"({"type":"custom_tool_call","call_id":"c2","name":"g","input":"i"},)"
     R"({"type":"custom_tool_call_output","call_id":"c2","output":"two"},)"
     R"({"type":"function_call_output","call_id":"c1","output":"one"},)"
     R"({"type":"function_call","call_id":"c3","name":"f","arguments":"{}"},)"
     R"({"type":"function_call_output","call_id":"c3","output":"three"}])",
     R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[)"
     R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},)"
     R"({"id":"c2","type":"function","function":{"name":"g","arguments":"{\"input\":\"i\"}"}}]},)"
     R"({"role":"tool","content":"one"},{"role":"tool","content":"two"},)"
     R"({"role":"assistant","content":null,"tool_calls":[{"id":"c3","type":"function","function":{"name":"f",)"
     R"("arguments":"{}"}}]},{"role":"tool","content":"three"}])"},
    {"AThoughtBetweenCalls",
     R"("input":[{"role":"user","content":"hi"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},)" +
         kItems.substr(0, kItems.find(R"(,{"type":"function_call")")) +
         R"(,{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},)"
         R"({"type":"function_call_output","call_id":"c2","output":"two"},)"
         R"({"type":"function_call_output","call_id":"c1","output":"one"}])",
     R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{"id":"c1","type":"function",)"
     R"("function":{"name":"f","arguments":"{}"}}]},{"role":"assistant","reasoning":"hm","tool_calls":[{"id":"c2",)"
     R"("type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"one"},)"
     R"({"role":"tool","content":"two"}])"},
    {"EffortNone", R"("input":"hi","reasoning":{"effort":"none","summary":"auto"})",
     R"("messages":[{"role":"user","content":"hi"}],"reasoning_effort":"none")"},
    {"TemplateOptions", R"("input":"hi","chat_template_kwargs":{"thinking_mode":"enabled"})",
     R"("messages":[{"role":"user","content":"hi"}],"chat_template_kwargs":{"thinking_mode":"enabled"})"},
};

class ResponsesPrompt : public test::ApiAnswers, public testing::WithParamInterface<SameChat> {};

TEST_P(ResponsesPrompt, IsThatOfTheSameChat) {
  const std::string expected = prompt(openai::kChatApi, GetParam().chat);
  EXPECT_THAT(expected, testing::Not(testing::StartsWith("error")));
  EXPECT_EQ(prompt(kResponsesApi, GetParam().body), expected);
}

INSTANTIATE_TEST_SUITE_P(Responses, ResponsesPrompt, testing::ValuesIn(kSame),
                         [](const auto& info) { return info.param.name; });

struct Bad {
  const char *name, *body, *field, *message;
  friend void PrintTo(const Bad& it, std::ostream* out) { *out << it.name; }
};

const Bad kBad[] = {
    {"NoInput", R"("model":"m3")", "input", "missing"},
    {"NumberAsInput", R"("input":5)", "input", "must be a string or a list of items, got 5"},
    {"NoItems", R"("input":[])", "input", "at least one item"},
    {"UnknownItem", R"("input":[{"type":"computer_call"}])", "input[0].type", "\"computer_call\""},
    {"ReferenceWithoutAStore", R"("input":[{"type":"item_reference","id":"msg_1_0"}])", "input[0].id",
     "stores no responses"},
    {"UnknownRole", R"("input":[{"role":"robot","content":"x"}])", "input[0].role", "\"robot\""},
    {"FieldOfAnItem", R"("input":[{"role":"user","content":"x","foo":1}])", "input[0].foo", "not a field"},
    {"Part", R"("input":[{"role":"user","content":[{"type":"input_audio"}]}])", "input[0].content[0].type",
     "must be input_text"},
    {"Image", R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"http://x/y.png"}]}])",
     "input[0].content[0].type", "images"},
    {"CallWithoutId", R"("input":[{"type":"function_call","name":"f","arguments":"{}"}])", "input[0].call_id",
     "missing"},
    {"OutputNumber", R"("input":[{"type":"function_call_output","call_id":"c","output":3}])",
     "input[0].output", "must be a string"},
    {"OutputOfNoCall",
     R"("input":[{"role":"user","content":"x"},{"type":"function_call_output","call_id":"c","output":"x"}])",
     "input[1].call_id", "input[1].call_id must be the id of a call right before it"},
    {"CallWithoutOutput",
     R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
     R"({"type":"function_call","call_id":"d","name":"f","arguments":"{}"},)"
     R"({"type":"function_call_output","call_id":"c","output":"x"}])",
     "input[1].call_id", "input[1].call_id must have a result"},
    {"Messages", R"("messages":[{"role":"user","content":"x"}])", "messages", "use input"},
    {"MaxTokens", R"("input":"x","max_tokens":3)", "max_tokens", "use max_output_tokens"},
    {"Tokens", R"("input":"x","max_output_tokens":-1)", "max_output_tokens", "max_output_tokens must be"},
    {"TooManyTokens", R"("input":"x","max_output_tokens":100000)", "max_output_tokens",
     "maximum context length"},
    {"Temperature", R"("input":"x","temperature":9)", "temperature", "got 9"},
    {"Unknown", R"("input":"x","foo":1)", "foo", "is not a field of this request"},
    {"UnknownTool", R"("input":"x","tools":[{"type":"teleport"}])", "tools[0].type", "no tools of its own"},
    {"HostedToolInANamespace",
     R"("input":"x","tools":[{"type":"namespace","name":"s","tools":[{"type":"web_search"}]}])",
     "tools[0].tools[0].type", "must be function or custom"},
    {"ParametersInANamespace",
     R"("input":"x","tools":[{"type":"web_search"},{"type":"namespace","name":"s","tools":[)"
     R"({"type":"function","name":"f","parameters":3}]}])",
     "tools[1].tools[0].parameters", "tools[1].tools[0].parameters must be an object"},
    {"GrammarOfACustomTool",
     R"("input":"x","tools":[{"type":"custom","name":"c","format":{"type":"grammar","syntax":"bnf","definition":""}}])",
     "tools[0].format.syntax", "must be lark or regex"},
    {"ForcedHostedTool", R"("input":"x","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"})",
     "tool_choice.type", "must be function, custom"},
    {"NamelessTool", R"("input":"x","tools":[{"type":"function"}])", "tools[0].name", "missing"},
    {"ToolParameters", R"("input":"x","tools":[{"type":"function","name":"f","parameters":3}])",
     "tools[0].parameters", "tools[0].parameters must be an object"},
    {"StrictTool",
     R"("input":"x","tools":[{"type":"function","name":"f","strict":true,"parameters":{"properties":{"a":{"not":{}}}}}])",
     "tools[0].parameters", "keyword not at #/properties/a"},
    {"ToolChoice",
     R"("input":"x","tool_choice":{"type":"function","name":"g"},)"
     R"("tools":[{"type":"function","name":"f"}])",
     "tool_choice.name", "tool_choice.name must be the name of one of the tools"},
    {"ToolChoiceType", R"("input":"x","tool_choice":{"type":"mcp"})", "tool_choice.type", "must be function"},
    {"ToolChoiceWord", R"("input":"x","tool_choice":"some")", "tool_choice", "\"some\""},
    {"Format", R"("input":"x","text":{"format":{"type":"grammar"}})", "text.format.type", "text.format.type"},
    {"Verbosity", R"("input":"x","text":{"verbosity":"loud"})", "text.verbosity", "\"loud\""},
    {"Effort", R"("input":"x","reasoning":{"effort":"huge"})", "reasoning.effort", "\"huge\""},
    {"Truncation", R"("input":"x","truncation":"auto")", "truncation", "must be disabled"},
    {"Conversation", R"("input":"x","conversation":"conv_1")", "conversation", "not supported"},
    {"Previous", R"("input":"x","previous_response_id":"resp_1")", "previous_response_id", "\"resp_1\""},
    {"Store", R"("input":"x","store":true)", "store", "must be false"},
    {"Prompt", R"("input":"x","prompt":{"id":"p"})", "prompt", "no stored prompts"},
    {"Logprobs", R"("input":"x","include":["message.output_text.logprobs"])", "include[0]", "not supported"},
    {"TopLogprobs", R"("input":"x","top_logprobs":5)", "top_logprobs", "must be 0"},
    {"Instructions", R"("input":"x","instructions":[1])", "instructions", "must be a string"},
};

class BadResponses : public test::ApiAnswers, public testing::WithParamInterface<Bad> {};

TEST_P(BadResponses, AreRefusedByFieldAndValue) {
  const Error got = error(kResponsesApi, GetParam().body);
  EXPECT_EQ(got.field, GetParam().field) << got.message;
  EXPECT_THAT(got.message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Responses, BadResponses, testing::ValuesIn(kBad),
                         [](const auto& info) { return info.param.name; });

using ResponsesRequests = test::ApiAnswers;

TEST_F(ResponsesRequests, WhatClientsSendAlongIsTaken) {
  for (const char* more : {R"("store":false)",
                           R"("include":[])",
                           R"("include":["reasoning.encrypted_content"])",
                           R"("include":["web_search_call.action.sources"])",
                           R"("prompt_cache_key":"k")",
                           R"("service_tier":"auto")",
                           R"("truncation":"disabled")",
                           R"("top_logprobs":0)",
                           R"("metadata":{"a":"b"})",
                           R"("text":{"format":{"type":"text"},"verbosity":"low"})",
                           R"("reasoning":{"effort":"medium","summary":"auto"})",
                           R"("parallel_tool_calls":true)",
                           R"("client_metadata":{"x":"y"})",
                           R"("user":"u")",
                           R"("safety_identifier":"s")",
                           R"("max_tool_calls":3)",
                           R"("tool_choice":"auto")",
                           R"("tools":[])",
                           R"("background":false)",
                           R"("conversation":null)",
                           R"("previous_response_id":null)",
                           R"("stream":true,"stream_options":{"include_obfuscation":false})"})
    EXPECT_THAT(prompt(kResponsesApi, std::string(R"("input":"hi",)") + more), HasSubstr("hi")) << more;
}

TEST_F(ResponsesRequests, SamplingFieldsOfChatsAreTakenToo) {
  const auto prepared = openai::prepare(
      kResponsesApi,
      R"({"input":"hi","top_k":7,"min_p":0.1,"seed":5,"logit_bias":{"3":1},"stop":["x"],"temperature":0.5})",
      model_);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  const SamplingParams& sampling = prepared.value()->request.sampling;
  EXPECT_EQ(sampling.top_k, 7);
  EXPECT_FLOAT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.logit_bias.size(), 1u);
  EXPECT_EQ(prepared.value()->fields.seed, 5u);
  EXPECT_EQ(prepared.value()->answer.stop, std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace sparrow::responses
