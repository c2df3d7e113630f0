// SPDX-License-Identifier: Apache-2.0
// What happens to a request before the engine sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr const char* kLongStream = R"(,"max_tokens":1500,"stream":true)";

// A body that cannot be parsed shows whether it was looked at.
TEST_F(ServiceTest, TheLimitOfAKeyIsToldBeforeTheBodyIsLookedAt) {
  ASSERT_TRUE(keys_.add("k", "", {.max_requests = 1}).ok());
  start();
  RawClient first(server_->port());
  first.send(json_post("/v1/chat/completions", chat_body(kLongStream), "Authorization: Bearer k\r\n"));
  ASSERT_THAT(first.read_bytes(200), HasSubstr("200"));
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    const RawResponse second = ask(json_post(path, "{", "Authorization: Bearer k\r\n"));
    EXPECT_EQ(second.status, 429) << path << second.body;
    EXPECT_EQ(second.header("retry-after"), "1");
  }
  first.close();
  ASSERT_TRUE(is_quiet_within(milliseconds(5000)));
  // What was refused for its body holds no place.
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(ask(json_post("/v1/completions", "{", "Authorization: Bearer k\r\n")).status, 400);
}

TEST_F(ServiceTest, AFullQueueIsToldBeforeTheBodyIsLookedAt) {
  start({.cache_tokens = kBlocks * kBlockTokens,
         .threads = 1,
         .max_model_tokens = 2048,
         .max_batch_tokens = 256,
         .max_sequences = 1,
         .max_queued_requests = 1});
  RawClient running(server_->port()), queued(server_->port());
  running.send(json_post("/v1/chat/completions", chat_body(kLongStream)));
  ASSERT_THAT(running.read_bytes(200), HasSubstr("200"));
  queued.send(json_post("/v1/chat/completions", chat_body(kLongStream)));
  while (engine_->stats().queued_requests == 0) std::this_thread::yield();
  const RawResponse refused = ask(json_post("/v1/completions", "{"));
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("1 requests are waiting and the queue holds 1"));
}

// More bytes than 2,048 tokens can stand for: told with the numbers, and nothing is tokenised.
TEST_F(ServiceTest, AHopelessTextIsNotTokenised) {
  start();
  const std::string text(4 << 20, 'a');
  for (const std::string& request : {json_post("/v1/chat/completions", chat_body("", text)),
                                     json_post("/v1/completions", R"({"prompt":")" + text + R"("})")}) {
    const RawResponse response = ask(request);
    EXPECT_EQ(response.status, 400);
    EXPECT_THAT(response.body, HasSubstr(" bytes, which are at least "));
    EXPECT_THAT(response.body, HasSubstr(" tokens, and this model takes 2048"));
  }
  EXPECT_EQ(cache_.encoded_bytes(), 0u);
}

TEST_F(ServiceTest, ATextOfTooManyTokensIsTokenisedUpToTheLimit) {
  start();
  const std::string text(4000, '#');  // a token each
  const RawResponse response = ask(json_post("/v1/completions", R"({"prompt":")" + text + R"("})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("the prompt has more than 2048 tokens and this model takes 2048"));
  EXPECT_THAT(response.body, HasSubstr(R"("param":"prompt")"));
}

}  // namespace
}  // namespace sparrow
