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

// The words and the code by which clients know that they have to shorten the conversation.
TEST_F(ClientAnswers, ARequestThatDoesNotFitSaysSoInTheWordsThatClientsLookFor) {
  model_.defaults.max_model_tokens = 64;
  const std::string text(400, '#');
  const auto expect = [](const auto& result, const char* field) {
    ASSERT_FALSE(result.ok());
    EXPECT_TRUE(is_too_long(result.error())) << result.error().message;
    EXPECT_EQ(result.error().field, field);
    EXPECT_THAT(result.error().message, HasSubstr("This model's maximum context length is 64 tokens"));
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

}  // namespace
}  // namespace sparrow::openai
