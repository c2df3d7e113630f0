// SPDX-License-Identifier: Apache-2.0
// What clients read out of answers and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/openai/generation.h"
#include "support/server/openai_answers.h"
#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using test::read_whole;
using test::ReadCall;
using testing::HasSubstr;

constexpr std::string_view kNs = "]<]minimax[>[";
constexpr std::string_view kTools = R"(,"tools":[{"type":"function","function":{"name":"f"}}])";

std::string call_block() {
  return strf(
      "{0}<tool_call>\n{0}<invoke name=\"f\">{0}</invoke>\n{0}<invoke name=\"f\">{0}</invoke>\n"
      "{0}</tool_call>",
      kNs);
}

class ClientAnswers : public OpenAiRequests {
 protected:
  // The answer of one request whose outputs all say this.
  test::ReadAnswer answer(const std::string& extra, std::string_view text) {
    Generation generation(model_, chat(extra).value(), "the same id");
    const std::vector<int32_t> ids = tokenizer_.encode(text).value();
    for (int output = 0; output < 2; ++output)
      for (size_t i = 0; i < ids.size(); ++i) {
        TokenEvent event{.output = output, .id = ids[i]};
        if (i + 1 == ids.size()) event.finish = FinishReason::kStop;
        generation.take(std::move(event));
      }
    return read_whole(generation.response());
  }
};

TEST_F(ClientAnswers, TheIdOfACallIsUniqueAndShort) {
  std::set<std::string> ids;
  for (int i = 0; i < 50; ++i)
    for (const auto& [index, choice] : answer(std::string(kTools) + R"(,"n":2)", call_block()).choices) {
      ASSERT_EQ(choice.calls.size(), 2u);
      for (const ReadCall& call : choice.calls) {
        EXPECT_TRUE(ids.insert(call.id).second) << call.id;
        EXPECT_LE(call.id.size(), 40u) << call.id;
        EXPECT_TRUE(call.id.starts_with("call_")) << call.id;
      }
    }
}

// The words and the code by which clients know that they have to shorten the conversation.
TEST_F(ClientAnswers, ARequestThatDoesNotFitSaysSoInTheWordsThatClientsLookFor) {
  model_.defaults.max_model_tokens = 64;
  const std::string text(400, '#');
  const auto expect = [](const auto& result, const char* field) {
    ASSERT_FALSE(result.ok());
    EXPECT_TRUE(is_too_long(result.error())) << result.error().message;
    EXPECT_EQ(result.error().field, field);
    EXPECT_THAT(result.error().message, HasSubstr("This model's maximum context length is 64 tokens"));
    EXPECT_THAT(result.error().message, HasSubstr("prompt is too long")) << "Anthropic's clients";
  };
  expect(completion(R"("prompt":")" + text + '"'), "prompt");
  expect(completion(R"("prompt":")" + std::string(100'000, '#') + '"'), "prompt");
  expect(completion(R"("prompt":"a","max_tokens":64)"), "max_tokens");
  expect(chat(R"(,"tools":[{"type":"function","function":{"name":")" + text.substr(0, 200) + R"("}}])"),
         "messages");
  EXPECT_THAT(completion(R"("prompt":[1,2,3],"max_tokens":64)").error().message,
              HasSubstr("you requested 67 tokens (3 in the prompt, 64 in the completion)"));
}

// Of whole answers and of streams, as vLLM writes them.
TEST_F(ClientAnswers, TheIdsOfTokensAreReturnedWhereTheyAreAskedFor) {
  const auto run = [&](const Api& api, const std::string& body) {
    Generation generation(model_, prepare(api, body, model_).value(), "r");
    std::string out;
    for (const int32_t id : {97, 195, 169}) {  // the last two are one character
      TokenEvent event{.id = id};
      if (id == 169) event.finish = FinishReason::kStop;
      generation.take(std::move(event));
      if (generation.streams()) generation.append_chunks(out);
    }
    return generation.streams() ? out : generation.response();
  };
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
    return found;
  };
  const std::string completion = R"({"prompt":[5,6],"return_token_ids":true)",
                    chat = R"({"messages":[{"role":"user","content":"a"}],"return_token_ids":true)";
  EXPECT_THAT(run(kCompletionApi, completion + "}"),
              HasSubstr(R"("token_ids":[97,195,169],"prompt_token_ids":[5,6]})"));
  const std::string whole = run(kChatApi, chat + "}");
  EXPECT_THAT(whole, HasSubstr(R"("token_ids":[97,195,169]})"));
  EXPECT_EQ(count(whole, R"("prompt_token_ids":[)"), 1);
  for (const auto& [endpoint, body] : {std::pair(kCompletionApi, completion), {kChatApi, chat}}) {
    const std::string stream = run(endpoint, body + R"(,"stream":true})");
    EXPECT_EQ(count(stream, R"("prompt_token_ids":[)"), 1) << stream;
    for (const char* ids : {R"("token_ids":[97])", R"("token_ids":[195])", R"("token_ids":[169])"})
      EXPECT_EQ(count(stream, ids), 1) << ids << stream;
  }
  EXPECT_EQ(count(run(kCompletionApi, R"({"prompt":[5,6]})"), "token_ids"), 0);
}

TEST_F(ClientAnswers, WithoutToolsTheirMarkupIsContent) {
  const std::string block = call_block();
  const auto first = [&](const std::string& extra) { return answer(extra + R"(,"n":2)", block).choices[0]; };
  EXPECT_EQ(first("").content, block);
  EXPECT_EQ(first("").finish_reason, "stop");
  EXPECT_EQ(first(std::string(kTools) + R"(,"tool_choice":"none")").content, block);
  EXPECT_EQ(first(R"(,"tools":[])").content, block);
  EXPECT_EQ(first(std::string(kTools)).content, "");
  EXPECT_EQ(first(std::string(kTools)).calls.size(), 2u);
}

TEST_F(ClientAnswers, NoSpecialTokenButTheModelsMarkupIsContent) {
  EXPECT_EQ(answer(R"(,"n":2)",
                   "a]<]frame[>[]<]start of frame[>[b]<]end of frame[>["
                   "<|content_altered_placeholder|>c]~b]]<]image[>[<fim_pad>d")
                .choices[0]
                .content,
            "abcd");
}

}  // namespace
}  // namespace sparrow::openai
