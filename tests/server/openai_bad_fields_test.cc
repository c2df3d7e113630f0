// SPDX-License-Identifier: Apache-2.0
// What requests must not say: every bad field is named, with its value, and none is ignored.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using testing::HasSubstr;

struct BadField {
  const char* name;
  const char* extra;    // after the messages
  const char* field;    // that the error names
  const char* message;  // part of what it says
};

const BadField kBadFields[] = {
    {"UnknownField", R"(,"temprature":1)", "temprature",
     "is not a field of this request (did you mean temperature?), got 1"},
    {"TemperatureString", R"(,"temperature":"hot")", "temperature", "\"hot\""},
    {"TemperatureTooHigh", R"(,"temperature":2.5)", "temperature", "from 0 to 2"},
    {"TemperatureNegative", R"(,"temperature":-0.1)", "temperature", "from 0 to 2"},
    {"TopPAboveOne", R"(,"top_p":1.01)", "top_p", "from 0 to 1"},
    {"TopPList", R"(,"top_p":[1])", "top_p", "number"},
    {"TopKFraction", R"(,"top_k":1.5)", "top_k", "integer"},
    {"TopKBelowMinusOne", R"(,"top_k":-2)", "top_k", "-2"},
    {"MinPAboveOne", R"(,"min_p":2)", "min_p", "from 0 to 1"},
    {"NZero", R"(,"n":0)", "n", "0"},
    {"NHuge", R"(,"n":1000000000000)", "n", "1000000000000"},
    {"NBool", R"(,"n":true)", "n", "true"},
    {"SeedString", R"(,"seed":"x")", "seed", "\"x\""},
    {"SeedTooLarge", R"(,"seed":99999999999999999999)", "seed", "integer"},
    {"MaxTokensNegative", R"(,"max_tokens":-1)", "max_tokens", "-1"},
    {"MaxTokensBeyondContext", R"(,"max_tokens":5000)", "max_tokens", "4096"},
    {"MaxTokensContradict", R"(,"max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens",
     "contradicts"},
    {"MinAboveMax", R"(,"max_tokens":5,"min_tokens":6)", "min_tokens", "more than max_tokens"},
    {"StopEmpty", R"(,"stop":"")", "stop", "1 to"},
    {"StopNumber", R"(,"stop":3)", "stop", "list"},
    {"StopListOfNumbers", R"(,"stop":[3])", "stop[0]", "string"},
    {"StopIdOutOfRange", R"(,"stop_token_ids":[400])", "stop_token_ids[0]", "400"},
    {"StopIdNegative", R"(,"stop_token_ids":[-1])", "stop_token_ids[0]", "-1"},
    {"BiasNotAnId", R"(,"logit_bias":{"x":1})", "logit_bias.x", "token id"},
    {"BiasIdOutOfRange", R"(,"logit_bias":{"400":1})", "logit_bias.400", "below 400"},
    {"BiasTooLarge", R"(,"logit_bias":{"1":101})", "logit_bias.1", "-100 to 100"},
    {"BiasList", R"(,"logit_bias":[1])", "logit_bias", "object"},
    {"AllowedEmpty", R"(,"allowed_token_ids":[])", "allowed_token_ids", "list of token ids"},
    {"LogprobsNumber", R"(,"logprobs":5)", "logprobs", "5"},
    {"TopLogprobsAlone", R"(,"top_logprobs":5)", "top_logprobs", "needs logprobs"},
    {"TopLogprobsTooMany", R"(,"logprobs":true,"top_logprobs":21)", "top_logprobs", "21"},
    {"PromptLogprobsNegative", R"(,"prompt_logprobs":-1)", "prompt_logprobs", "-1"},
    {"StreamString", R"(,"stream":"yes")", "stream", "\"yes\""},
    {"StreamOptionsWithoutStream", R"(,"stream_options":{"include_usage":true})", "stream_options",
     "stream is true"},
    {"StreamOptionUnknown", R"(,"stream":true,"stream_options":{"x":1})", "stream_options.x",
     "is not a field of stream_options"},
    {"ToolsObject", R"(,"tools":{})", "tools", "list"},
    {"ToolWithoutFunction", R"(,"tools":[{"type":"function"}])", "tools[0].function", "missing"},
    {"ToolWithoutName", R"(,"tools":[{"type":"function","function":{}}])", "tools[0].function.name",
     "missing"},
    {"ToolNameWithQuote", R"(,"tools":[{"type":"function","function":{"name":"a\"b"}}])",
     "tools[0].function.name", "name"},
    {"ToolWithMore", R"(,"tools":[{"type":"function","foo":1,"function":{"name":"f"}}])", "tools[0].foo",
     "is not a field of a tool"},
    {"FunctionWithMore", R"(,"tools":[{"function":{"name":"f","foo":1}}])", "tools[0].function.foo",
     "is not a field of a function"},
    {"ParametersString", R"(,"tools":[{"function":{"name":"f","parameters":"x"}}])",
     "tools[0].function.parameters", "must be an object"},
    {"ParametersList", R"(,"tools":[{"function":{"name":"f","parameters":[]}}])",
     "tools[0].function.parameters", "must be an object"},
    {"DescriptionNumber", R"(,"tools":[{"function":{"name":"f","description":5}}])",
     "tools[0].function.description", "must be a string"},
    {"StrictString", R"(,"tools":[{"function":{"name":"f","strict":"x"}}])", "tools[0].function.strict",
     "true or false"},
    {"ToolChoiceWithMore",
     R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"},"x":1})",
     "tool_choice.x", "is not a field"},
    {"NamedChoiceWithMore",
     R"(,"tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f","x":1}})",
     "tool_choice.function.x", "is not a field"},
    {"TextFormatWithASchema", R"(,"response_format":{"type":"text","json_schema":{}})",
     "response_format.json_schema", "is not a field"},
    {"ToolChoiceUnknown", R"(,"tool_choice":"any")", "tool_choice", "\"any\""},
    {"RequiredWithoutTools", R"(,"tool_choice":"required")", "tool_choice", "needs tools"},
    {"NamedToolMissing",
     R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}})",
     "tool_choice.function.name", "one of the tools"},
    {"PromptLogprobsInAStream", R"(,"stream":true,"prompt_logprobs":1)", "prompt_logprobs", "with stream"},
    {"ForcedCallOfAllowedIds",
     R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","allowed_token_ids":[5])",
     "allowed_token_ids", "tool_choice"},
    {"ForcedCallOfANameThatIsNoAttribute",
     R"(,"tools":[{"type":"function","function":{"name":"a\">b"}}],"tool_choice":"required")",
     "tools[0].function.name", "must be a function's name"},
    {"ResponseFormatXml", R"(,"response_format":{"type":"xml"})", "response_format.type",
     "must be text, json_object or json_schema"},
    {"ResponseFormatWithoutSchema", R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
     "response_format.json_schema.schema", "missing"},
    {"SchemaKeyword",
     R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{"items":{"not":{"const":1}}}}})",
     "response_format.json_schema.schema", "keyword not at #/items"},
    {"SchemaThatNothingFits", R"(,"guided_json":{"type":"integer","minimum":2,"maximum":1})", "guided_json",
     "cannot be satisfied"},
    {"SchemaThatIsNoJson", R"(,"guided_json":"{")", "guided_json", "the schema"},
    {"GuidedRegex", R"x(,"guided_regex":"a(?=b)")x", "guided_regex",
     "a look-ahead but where the text begins is not supported, at byte 1"},
    {"GuidedChoice", R"(,"guided_choice":[])", "guided_choice", "1 to 10000"},
    {"GuidedGrammar", R"(,"guided_grammar":"root ::= x")", "guided_grammar", "the rule x is not defined"},
    {"TwoForms", R"(,"guided_regex":"a","guided_choice":["b"])", "guided_choice", "both say"},
    {"StructuredOutputs", R"(,"structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs",
     "one thing only"},
    {"StructuralTag", R"(,"structured_outputs":{"structural_tag":"x"})", "structured_outputs.structural_tag",
     "is not supported"},
    {"StrictToolKeyword",
     R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"not":{}}}}}}])",
     "tools[0].function.parameters", "keyword not at #/properties/a"},
    {"StrictToolThatNothingFits",
     R"(,"tools":[{"type":"function","function":{"name":"e"}},{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object","properties":{"a":{"type":"array","items":false,"minItems":1}},"required":["a"]}}}])",
     "tools[1].function.parameters",
     "the parameters of the tool f: the schema cannot be satisfied: nothing fits what is at #/properties/a"},
    {"StrictToolWithANameThatIsNoTag",
     R"(,"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"properties":{"odd<>name":{}},"required":["odd<>name"]}}}])",
     "tools[0].function.parameters", "keyword required at # names odd<>name"},
    {"BudgetOfAllowedIds", R"(,"thinking_token_budget":3,"allowed_token_ids":[5])", "allowed_token_ids",
     "thinking_token_budget"},
    {"FormOfAllowedIds", R"(,"guided_regex":"a","allowed_token_ids":[5])", "allowed_token_ids",
     "guided_regex"},
    {"ChatTemplate", R"(,"chat_template":"{{ 1 }}")", "chat_template", "not taken from requests"},
    {"Functions", R"(,"functions":[])", "functions", "use tools"},
    {"Audio", R"(,"audio":{})", "audio", "not supported"},
    {"BeamSearch", R"(,"use_beam_search":true)", "use_beam_search", "must be false"},
    {"BestOf", R"(,"best_of":2)", "best_of", "use n"},
    {"SaltEmpty", R"(,"cache_salt":"")", "cache_salt", "1 to"},
    {"UserNumber", R"(,"user":5)", "user", "5"},
    {"PriorityHuge", R"(,"priority":1e12)", "priority", "1000000000000"},
    {"EffortUnknown", R"(,"reasoning_effort":"turbo")", "reasoning_effort", "none, minimal, low"},
    {"EffortContradicts", R"(,"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true})",
     "reasoning_effort", "contradicts"},
    {"ContinueAndGenerate", R"(,"continue_final_message":true,"add_generation_prompt":true)",
     "add_generation_prompt", "must be false"},
    {"ModelNumber", R"(,"model":5)", "model", "5"},
    {"MinTokensNegative", R"(,"min_tokens":-1)", "min_tokens", "-1"},
    {"MinPNegative", R"(,"min_p":-0.1)", "min_p", "from 0 to 1"},
    {"StopIdsTooMany", nullptr, "stop_token_ids", "at most 256"},
    {"StopsTooMany", nullptr, "stop", "at most 32"},
    {"PresenceTooHigh", R"(,"presence_penalty":2.1)", "presence_penalty", "from -2 to 2"},
    {"FrequencyTooLow", R"(,"frequency_penalty":-2.1)", "frequency_penalty", "from -2 to 2"},
    {"RepetitionZero", R"(,"repetition_penalty":0)", "repetition_penalty", "from 0.01 to 100"},
    {"AllowedOutOfRange", R"(,"allowed_token_ids":[400])", "allowed_token_ids[0]", "400"},
    {"PromptLogprobsTooMany", R"(,"prompt_logprobs":21)", "prompt_logprobs", "21"},
    {"PriorityFraction", R"(,"priority":0.5)", "priority", "0.5"},
    {"SaltTooLong", nullptr, "cache_salt", "1 to 256"},
    {"MaxCompletionTokensNegative", R"(,"max_completion_tokens":-1)", "max_completion_tokens", "-1"},
    {"UsageNumber", R"(,"stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
     "1"},
    {"ContinuousUsageNumber", R"(,"stream":true,"stream_options":{"continuous_usage_stats":1})",
     "stream_options.continuous_usage_stats", "1"},
    {"Obfuscation", R"(,"stream":true,"stream_options":{"include_obfuscation":true})",
     "stream_options.include_obfuscation", "must be false"},
    {"ToolOfAnotherType", R"(,"tools":[{"type":"custom","function":{"name":"f"}}])", "tools[0].type",
     "must be function"},
    {"FunctionCall", R"(,"function_call":"auto")", "function_call", "use tool_choice"},
    {"ModalitiesAudio", R"(,"modalities":["audio"])", "modalities", "must be [\"text\"]"},
    {"SpecialTokensInTheText", R"(,"skip_special_tokens":false)", "skip_special_tokens", "must be true"},
    {"KwargOfTheServer", R"(,"chat_template_kwargs":{"tools":[]})", "chat_template_kwargs.tools",
     "field of the request"},
    {"LengthPenalty", R"(,"length_penalty":1.1)", "length_penalty", "must be 1: there is no beam search"},
    {"WithoutReasoning", R"(,"include_reasoning":false)", "include_reasoning", "must be true: reasoning"},
};

// Those that are too long to be written down.
std::string long_field(std::string_view name) {
  if (name == "cache_salt") return strf(R"(,"cache_salt":"{}")", std::string(257, 's'));
  std::string list;
  for (int i = 0; i < 257; ++i) list += name == "stop" ? ",\"s\"" : ",5";
  return strf(R"(,"{}":[{}])", name, list.substr(1));
}

class BadFieldTest : public OpenAiRequests, public testing::WithParamInterface<BadField> {};

TEST_P(BadFieldTest, IsNamedWithItsValue) {
  const auto result = chat(GetParam().extra ? GetParam().extra : long_field(GetParam().field));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field, GetParam().field) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(OpenAi, BadFieldTest, testing::ValuesIn(kBadFields),
                         [](const auto& info) { return info.param.name; });

// The same below the top level: a message is read as closely as the request around it.
const BadField kBadMessages[] = {
    {"NoObject", R"("hi")", "messages[1]", "must be an object"},
    {"NoRole", R"({"content":"x"})", "messages[1].role", "missing"},
    {"NoContent", R"({"role":"user"})", "messages[1].content", "missing"},
    {"NullContent", R"({"role":"user","content":null})", "messages[1].content", "missing"},
    {"UnknownField", R"({"role":"user","content":"x","foo":1})", "messages[1].foo",
     "messages[1].foo is not a field of a message, got 1"},
    {"CallsOfAUser", R"({"role":"user","content":"x","tool_calls":[{"function":{"name":"f"}}]})",
     "messages[1].tool_calls", "role assistant"},
    {"CallIdOfAUser", R"({"role":"user","content":"x","tool_call_id":"c"})", "messages[1].tool_call_id",
     "role tool"},
    {"ReasoningOfAUser", R"({"role":"user","content":"x","reasoning":"y"})", "messages[1].reasoning",
     "role assistant"},
    {"ReasoningNumber", R"({"role":"assistant","content":"x","reasoning_content":5})",
     "messages[1].reasoning_content", "must be a string"},
    {"TwoThoughts", R"({"role":"assistant","content":"x","reasoning":"a","reasoning_content":"b"})",
     "messages[1].reasoning", "contradicts messages[1].reasoning_content"},
    {"NameNumber", R"({"role":"user","content":"x","name":5})", "messages[1].name", "must be a string"},
    {"Refusal", R"({"role":"assistant","content":"x","refusal":"no"})", "messages[1].refusal",
     "not supported"},
    {"Audio", R"({"role":"assistant","content":"x","audio":{"id":"a"}})", "messages[1].audio",
     "not supported"},
    {"FunctionCall", R"({"role":"assistant","content":"x","function_call":{"name":"f"}})",
     "messages[1].function_call", "use tool_calls"},
    {"Annotations", R"({"role":"assistant","content":"x","annotations":[{}]})", "messages[1].annotations",
     "not supported"},
    {"PartWithMore", R"({"role":"user","content":[{"type":"text","text":"x","foo":1}]})",
     "messages[1].content[0].foo", "is not a field of a text part"},
    {"PartWithoutType", R"({"role":"user","content":[{"text":"x"}]})", "messages[1].content[0].type",
     "missing"},
    {"PartWithoutText", R"({"role":"user","content":[{"type":"text"}]})", "messages[1].content[0].text",
     "missing"},
    {"PartNumber", R"({"role":"user","content":[5]})", "messages[1].content[0]", "5"},
    {"CallsObject", R"({"role":"assistant","tool_calls":{"a":1}})", "messages[1].tool_calls", "list"},
    {"CallWithMore", R"({"role":"assistant","tool_calls":[{"foo":1,"function":{"name":"f"}}]})",
     "messages[1].tool_calls[0].foo", "is not a field of a tool call"},
    {"CallWhoseIdIsANumber", R"({"role":"assistant","tool_calls":[{"id":7,"function":{"name":"f"}}]})",
     "messages[1].tool_calls[0].id", "string"},
    {"CallOfAnotherType", R"({"role":"assistant","tool_calls":[{"type":"custom"}]})",
     "messages[1].tool_calls[0].type", "must be function"},
    {"CalledWithMore", R"({"role":"assistant","tool_calls":[{"function":{"name":"f","foo":1}}]})",
     "messages[1].tool_calls[0].function.foo", "is not a field"},
    {"ArgumentsNumber", R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":5}}]})",
     "messages[1].tool_calls[0].function.arguments", "must be a string"},
};

class BadMessageTest : public OpenAiRequests, public testing::WithParamInterface<BadField> {};

TEST_P(BadMessageTest, IsNamedWithItsPath) {
  const std::string messages = strf(R"("messages":[{{"role":"user","content":"x"}},{}])", GetParam().extra);
  const auto result = prepare(kChatApi, "{" + messages + "}", model_);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().field, GetParam().field) << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(GetParam().message));
  EXPECT_EQ(tokenize("{" + messages + "}", model_).error().field, GetParam().field) << "/tokenize";
}

INSTANTIATE_TEST_SUITE_P(OpenAi, BadMessageTest, testing::ValuesIn(kBadMessages),
                         [](const auto& info) { return info.param.name; });

// Whatever is wrong with it, no more than a glance of what was sent comes back.
TEST_F(OpenAiRequests, AnErrorShowsLittleOfWhatWasSent) {
  std::string bird;
  while (bird.size() < 100'000) bird += "\xf0\x9f\x90\xa6";
  const std::string message = R"("messages":[{"role":"user","content":"x"}])";
  const std::string quoted = '"' + bird + '"', member = quoted + ":1";
  for (const std::string& body :
       {message + ",\"model\":" + quoted, message + "," + member, message + ",\"tools\":" + quoted,
        message + ",\"temperature\":" + quoted, message + ",\"stop\":{" + member + "}",
        message + ",\"logit_bias\":{" + member + "}", message + ",\"response_format\":{" + member + "}",
        message + ",\"reasoning_effort\":" + quoted, message + ",\"tool_choice\":" + quoted,
        message + "," + member + "," + member, message + R"(,"tools":[{"function":{"name":)" + quoted + "}}]",
        message + R"(,"tools":[{"function":{)" + member + "}}]",
        R"("messages":[{"role":)" + quoted + R"(,"content":"x"}])",
        R"("messages":[{"role":"user","content":"x",)" + member + "}]"}) {
    const auto result = prepare(kChatApi, "{" + body + "}", model_);
    ASSERT_FALSE(result.ok()) << body.substr(0, 80);
    const std::string& text = result.error().message;
    EXPECT_LT(text.size(), 500u) << text.substr(0, 600);
    EXPECT_LE(result.error().field.size(), 200u);
    EXPECT_EQ(valid_utf8_prefix(text), text.size()) << text;
  }
}

// A body has room for a schema as deep as schemas may be, and what is deeper is said to be.
TEST_F(OpenAiRequests, ASchemaMayHave128LevelsAndNoMore) {
  const auto form_of = [](int levels) {  // each object has two
    std::string schema = R"({"type":"integer"})";
    for (int i = 1; i < levels; i += 2) schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
    return R"(,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":)" + schema + "}}";
  };
  EXPECT_TRUE(chat(form_of(127)).ok());
  const auto deeper = chat(form_of(129));
  ASSERT_FALSE(deeper.ok());
  EXPECT_EQ(deeper.error().field, "response_format.json_schema.schema");
  EXPECT_THAT(deeper.error().message, HasSubstr("the schema is nested more than 128 levels deep"));
  const auto deepest = chat(form_of(301));
  ASSERT_FALSE(deepest.ok());
  EXPECT_THAT(deepest.error().message, HasSubstr("the request's body is nested more than 144 levels deep"));
}

// A list of an object is right for none of them.
TEST_F(OpenAiRequests, NoFieldTakesAValueOfAnotherType) {
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])", prompt = R"("prompt":"hi")";
  const auto refuses = [&](const Api& api, const std::string& rest, std::string_view field) {
    const bool is_rest = rest.find(field) == 1;
    const std::string body = strf(R"({{"{}":[{{}}]{}}})", field, is_rest ? "" : "," + rest);
    const auto result = prepare(api, body, model_);
    ASSERT_FALSE(result.ok()) << field;
    EXPECT_TRUE(result.error().field.starts_with(field)) << field << ": " << result.error().message;
  };
  for (const Field& field : shared_fields()) {
    refuses(kChatApi, messages, field.name);
    refuses(kCompletionApi, prompt, field.name);
  }
  for (const Field& field : chat_fields()) refuses(kChatApi, messages, field.name);
  for (const Field& field : completion_fields()) refuses(kCompletionApi, prompt, field.name);
}

// Null is how clients spell "absent", also of what nobody knows.
TEST_F(OpenAiRequests, AnyFieldMayBeNull) {
  const auto plain = chat("").value();
  for (const auto& table : {shared_fields(), chat_fields()})
    for (const Field& field : table) {
      if (field.name == "messages") continue;
      EXPECT_EQ(chat(strf(R"(,"{}":null)", field.name)).value()->request.prompts, plain->request.prompts);
    }
  EXPECT_TRUE(chat(R"(,"guided_json":null,"mm_processor_kwargs":null,"x":null)").ok());
  EXPECT_TRUE(completion(R"("prompt":"a","x":null)").ok());
  EXPECT_TRUE(chat(R"(,"stream":true,"stream_options":{"x":null})").ok());
}

}  // namespace
}  // namespace sparrow::openai
