// SPDX-License-Identifier: Apache-2.0
// Fields that clients send because they always do: those that change nothing are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ClientFields : public OpenAiRequests {};

TEST_F(ClientFields, NeutralValuesChangeNothing) {
  const auto plain = chat("").value();
  for (const char* field :
       {R"("top_logprobs":0)",
        R"("length_penalty":1)",
        R"("length_penalty":1.0)",
        R"("include_reasoning":true)",
        R"("store":true)",
        R"("store":false)",
        R"("service_tier":"flex")",
        R"("verbosity":"low")",
        R"("prediction":{"type":"content","content":"x"})",
        R"("reasoning_effort":"minimal")",
        R"("reasoning_effort":"xhigh")",
        R"("reasoning_effort":"max")",
        R"("metadata":{"a":"b"})",
        R"("prompt_cache_retention":"24h")",
        R"("prompt_cache_options":{"mode":"implicit","ttl":"30m"})",
        R"("add_special_tokens":false)",
        R"("add_special_tokens":true)",
        R"("early_stopping":false)",
        R"("best_of":1)",
        R"("echo":false)",
        R"("structured_outputs":{"disable_fallback":true,"disable_any_whitespace":false})",
        R"("chat_template_kwargs":{"foo":[1],"bar":null})",
        R"("chat_template_kwargs":{"thinking_mode":null})",
        R"("detokenize":true)"}) {
    const auto prepared = chat(std::string(",") + field);
    ASSERT_TRUE(prepared.ok()) << field << ": " << prepared.error().message;
    EXPECT_EQ(prepared.value()->request.prompts, plain->request.prompts) << field;
    EXPECT_EQ(prepared.value()->request.logprobs, std::nullopt) << field;
  }
}

TEST_F(ClientFields, ThinkingIsSetAsInMiniMaxsOwnApi) {
  const auto ids = [&](const std::string& extra) { return chat(extra).value()->request.prompts; };
  for (const char* mode : {"enabled", "disabled", "adaptive"})
    EXPECT_EQ(ids(strf(R"(,"reasoning_split":true,"thinking":{{"type":"{}"}})", mode)),
              ids(strf(R"(,"chat_template_kwargs":{{"thinking_mode":"{}"}})", mode)));
  EXPECT_EQ(chat(R"(,"thinking":{"type":"on"})").error().field, "thinking.type");
  EXPECT_EQ(chat(R"(,"thinking":{"type":"enabled"},"chat_template_kwargs":{"enable_thinking":false})")
                .error()
                .field,
            "thinking.type");
}

// Whatever is sent for a field: it is taken, or it is the field that is named.
TEST_F(ClientFields, AWrongValueIsNamedByItsField) {
  const std::string messages = R"("messages":[{"role":"user","content":"hi"}])", prompt = R"("prompt":"hi")";
  const auto check = [&](const Api& api, const std::string& rest, const Field& field, const char* value) {
    const std::string own = strf(R"("{}":{})", field.name, value);
    const bool is_rest = rest.starts_with(strf(R"("{}")", field.name));
    const auto result = prepare(api, "{" + own + (is_rest ? "" : "," + rest) + "}", model_);
    if (result.ok() || field.name == "model") return;
    EXPECT_TRUE(result.error().field.starts_with(field.name)) << own << ": " << result.error().message;
    EXPECT_NE(result.error().message, "");
  };
  for (const char* value : {"true",
                            "false",
                            "0",
                            "-1",
                            "1",
                            "5",
                            "0.5",
                            "1e300",
                            "-1e300",
                            "123456789012345678901234567890",
                            "\"\"",
                            "\"x\"",
                            "\"\\u0000\"",
                            "[]",
                            "[null]",
                            "[5]",
                            "[\"x\"]",
                            "[[]]",
                            "[{}]",
                            "{}",
                            "{\"x\":1}",
                            "{\"type\":5}",
                            "{\"type\":\"x\"}"}) {
    for (const Field& field : shared_fields()) {
      check(kChatApi, messages, field, value);
      check(kCompletionApi, prompt, field, value);
    }
    for (const Field& field : chat_fields()) check(kChatApi, messages, field, value);
    for (const Field& field : completion_fields()) check(kCompletionApi, prompt, field, value);
  }
}

TEST_F(ClientFields, TheNearestKnownFieldIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(,"max_token":5)", "did you mean max_tokens?"},
      {R"(,"tool_choise":"auto")", "did you mean tool_choice?"},
      {R"(,"stream_option":{})", "did you mean stream_options?"},
      {R"(,"stream":true,"stream_options":{"include_usages":true})", "did you mean include_usage?"},
  };
  for (const auto& [extra, words] : cases) EXPECT_THAT(chat(extra).error().message, HasSubstr(words));
  EXPECT_THAT(chat(R"(,"something_else_entirely":1)").error().message,
              testing::Not(HasSubstr("did you mean")));
}

TEST_F(ClientFields, ATopPOfNothingTakesTheBestId) {
  EXPECT_EQ(chat(R"(,"top_p":0)").value()->request.sampling.top_k, 1);
  EXPECT_EQ(chat(R"(,"top_k":1000000)").value()->request.sampling.top_k, 400) << "as many as there are";
}

TEST_F(ClientFields, APromptIsCutToItsLastTokens) {
  const auto ids = [&](const std::string& fields) {
    return completion(R"("prompt":[1,2,3,4,5])" + fields).value()->request.prompts[0];
  };
  EXPECT_THAT(ids(R"(,"truncate_prompt_tokens":2)"), ElementsAre(4, 5));
  EXPECT_THAT(ids(R"(,"truncate_prompt_tokens":9)"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(chat(R"(,"truncate_prompt_tokens":3)").value()->request.prompts[0].size(), 3u);
  model_.defaults.max_model_tokens = 6;
  EXPECT_THAT(ids(R"(,"truncate_prompt_tokens":-1,"max_tokens":3)"), ElementsAre(3, 4, 5));
  EXPECT_EQ(
      completion(strf(R"("prompt":"{}","truncate_prompt_tokens":-1,"max_tokens":3)", std::string(9, '#')))
          .value()
          ->request.prompts[0]
          .size(),
      3u);
  EXPECT_EQ(completion(R"("prompt":[1],"truncate_prompt_tokens":0)").error().field, "truncate_prompt_tokens");
  const auto echo =
      completion(R"("prompt":[97,98,99],"echo":true,"truncate_prompt_tokens":2,"max_tokens":1)");
  EXPECT_THAT(echo.value()->prompt_texts, ElementsAre("bc"));
}

TEST_F(ClientFields, OnlyAllowedToolsAreShownAndCalled) {
  const std::string tools = R"(,"tools":[{"function":{"name":"first"}},{"function":{"name":"second"}}])";
  const auto choice = [](const char* mode, const char* name) {
    return strf(R"(,"tool_choice":{{"type":"allowed_tools","allowed_tools":{{"mode":"{}","tools":)"
                R"([{{"type":"function","function":{{"name":"{}"}}}}]}}}})",
                mode, name);
  };
  const auto shown = [&](const std::string& extra) {
    return tokenizer_.decode(chat(extra).value()->request.prompts[0]).value();
  };
  EXPECT_THAT(shown(tools), HasSubstr("\"first\""));
  for (const char* mode : {"auto", "required"}) {
    EXPECT_THAT(shown(tools + choice(mode, "second")), testing::Not(HasSubstr("\"first\"")));
    EXPECT_THAT(shown(tools + choice(mode, "second")), HasSubstr("\"second\""));
  }
  EXPECT_FALSE(chat(tools + choice("auto", "second")).value()->request.constraint);
  EXPECT_TRUE(chat(tools + choice("required", "second")).value()->request.constraint);
  EXPECT_EQ(chat(tools + choice("auto", "third")).error().field,
            "tool_choice.allowed_tools.tools[0].function.name");
  EXPECT_EQ(chat(tools + choice("none", "second")).error().field, "tool_choice.allowed_tools.mode");
}

bool may_come(const NextIds& next, int32_t id) {
  if (!next.allowed.empty()) return std::ranges::find(next.allowed, id) != next.allowed.end();
  return next.mask.empty() || (next.mask[id / 32] >> (id % 32) & 1) != 0;
}

TEST_F(ClientFields, ABadWordIsNotCompleted) {
  const std::vector<int32_t> ids = tokenizer_.encode("xyz").value();
  ASSERT_EQ(ids.size(), 3u) << "a word of several tokens";
  const auto prepared = chat(R"(,"bad_words":["xyz","q"])").value();
  const int32_t letter = tokenizer_.encode("q").value()[0];
  EXPECT_THAT(prepared->request.sampling.banned_ids, testing::Contains(letter));
  const auto state = prepared->request.constraint->copy();
  EXPECT_TRUE(may_come(state->next_ids(), ids[2]));
  state->advance(ids[0]);
  const auto other = state->copy();
  state->advance(ids[1]);
  const NextIds next = state->next_ids();
  for (int32_t id = 0; id < 400; ++id) EXPECT_EQ(may_come(next, id), id != ids[2] && id != letter) << id;
  other->advance(ids[0]);
  EXPECT_TRUE(may_come(other->next_ids(), ids[2]));
  EXPECT_EQ(chat(R"(,"bad_words":[""])").error().field, "bad_words[0]");
  EXPECT_EQ(chat(R"(,"bad_words":"x")").error().field, "bad_words");
}

// Something must be left to draw.
TEST_F(ClientFields, ABadWordGivesWayToTheOnlyIdsThatAreAllowed) {
  const int32_t x = tokenizer_.encode("x").value()[0], y = tokenizer_.encode("y").value()[0];
  const auto state_after = [&](const std::string& words, int32_t id) {
    const auto prepared = chat(strf(R"(,"allowed_token_ids":[{},{}],"bad_words":[{}])", x, y, words)).value();
    auto state = prepared->request.constraint->copy();
    state->advance(id);
    return state;
  };
  EXPECT_FALSE(may_come(state_after(R"("xx")", x)->next_ids(), x));
  EXPECT_TRUE(may_come(state_after(R"("xx")", x)->next_ids(), y));
  EXPECT_TRUE(may_come(state_after(R"("xx","xy")", x)->next_ids(), x));
  EXPECT_TRUE(may_come(state_after(R"("yy","x")", y)->next_ids(), y)) << "the other one never comes";
}

// Beside what leaves the choice open, words are kept out like anywhere else.
TEST_F(ClientFields, BadWordsHoldInThoughtsAndForms) {
  const std::vector<int32_t> word = tokenizer_.encode("xyz").value();
  const int32_t letter = tokenizer_.encode("q").value()[0];
  const std::string thinks = R"(,"chat_template_kwargs":{"thinking_mode":"enabled"})";
  for (const std::string& extra :
       {R"(,"thinking_token_budget":9)" + thinks, R"(,"response_format":{"type":"json_object"})" + thinks,
        std::string(R"(,"structured_outputs":{"regex":"[a-z]*"},"reasoning_effort":"none")")}) {
    const auto state = chat(R"(,"bad_words":["xyz","q"])" + extra).value()->request.constraint->copy();
    EXPECT_FALSE(may_come(state->next_ids(), letter)) << extra;
    for (const int32_t id : {word[0], word[1]}) {
      EXPECT_TRUE(may_come(state->next_ids(), id)) << extra;
      state->advance(id);
    }
    EXPECT_FALSE(may_come(state->next_ids(), word[2])) << extra;
    EXPECT_TRUE(may_come(state->next_ids(), word[0])) << extra;
  }
}

// A call that is forced holds to its syntax, and to the words as far as that leaves a choice.
TEST_F(ClientFields, BadWordsAndAForcedCallHoldTogether) {
  const auto prepared = chat(R"(,"bad_words":["xyz","e"],"tools":[{"function":{"name":"f"}}],)"
                             R"("tool_choice":"required","reasoning_effort":"none")")
                            .value();
  // Letter by letter: what the syntax demands is drawn, also where it is a bad word.
  const auto state = prepared->request.constraint->copy();
  const std::string call = "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">";
  for (const int32_t id : tokenizer_.encode(call).value()) {
    ASSERT_TRUE(may_come(state->next_ids(), id)) << tokenizer_.decode(std::span(&id, 1)).value();
    state->advance(id);
  }
}

}  // namespace
}  // namespace sparrow::openai
