// SPDX-License-Identifier: Apache-2.0
// Fields that clients send because they always do: those that change nothing are taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/server/openai_requests.h"

namespace sparrow::openai {
namespace {

using testing::HasSubstr;

class ClientFields : public OpenAiRequests {};

TEST_F(ClientFields, NeutralValuesChangeNothing) {
  const auto plain = chat("").value();
  for (const char* field : {R"("top_logprobs":0)",
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
                            R"("add_special_tokens":false)",
                            R"("add_special_tokens":true)",
                            R"("early_stopping":false)",
                            R"("echo":false)",
                            R"("chat_template_kwargs":{"foo":[1],"bar":null})",
                            R"("chat_template_kwargs":{"thinking_mode":null})",
                            R"("detokenize":true)"}) {
    const auto prepared = chat(std::string(",") + field);
    ASSERT_TRUE(prepared.ok()) << field << ": " << prepared.error().message;
    EXPECT_EQ(prepared.value()->request.prompts, plain->request.prompts) << field;
    EXPECT_EQ(prepared.value()->request.logprobs, std::nullopt) << field;
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

}  // namespace
}  // namespace sparrow::openai
