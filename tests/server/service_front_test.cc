// SPDX-License-Identifier: Apache-2.0
// What happens to a request before the engine sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/server/service_fixture.h"

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
         .cpu = {.threads = 1},
         .max_model_tokens = 2048,
         .max_step_tokens = 256,
         .max_step_sequences = 1,
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
    EXPECT_THAT(response.body, HasSubstr("maximum context length is 2048 tokens"));
    EXPECT_THAT(response.body, HasSubstr(R"("code":"context_length_exceeded")"));
  }
  EXPECT_EQ(cache_.encoded_bytes(), 0u);
}

TEST_F(ServiceTest, ATextOfTooManyTokensIsTokenisedUpToTheLimit) {
  start();
  const std::string text(4000, '#');  // a token each
  const RawResponse response = ask(json_post("/v1/completions", R"({"prompt":")" + text + R"("})"));
  EXPECT_EQ(response.status, 400);
  EXPECT_THAT(response.body, HasSubstr("your prompt resulted in more than 2048 tokens"));
  EXPECT_THAT(response.body, HasSubstr(R"("param":"prompt")"));
}

// Balancers see it while requests are still answered.
TEST_F(ServiceTest, AServerThatIsAboutToStopIsNotReadyAndStillAnswers) {
  start();
  RawClient kept(server_->port());
  kept.send(get_request("/ready"));
  EXPECT_EQ(kept.read_response().status, 200);
  server_->announce_drain();
  kept.send(get_request("/ready"));
  const RawResponse ready = kept.read_response();
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("stopping"));
  EXPECT_EQ(ready.header("connection"), "close");
  EXPECT_TRUE(kept.is_closed_within(milliseconds(5000)));
  EXPECT_EQ(ask(get_request("/health")).status, 200);
  const RawResponse answer = chat(R"(,"max_tokens":2)");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("connection"), "close");
}

// A web page whose name leads to this machine says that name.
TEST_F(ServiceTest, OnlyAllowedHostsAreAnswered) {
  allowed_hosts_ = {"localhost", "127.0.0.1", "[::1]", "box.example"};
  start();
  const auto status = [&](const std::string& host, const char* path = "/v1/models") {
    return ask(strf("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", path, host)).status;
  };
  for (const char* host :
       {"localhost", "LocalHost:8000", "localhost.", "127.0.0.1:1", "[::1]", "[::1]:8000", "box.example:80"})
    EXPECT_EQ(status(host), 200) << host;
  for (const char* host : {"evil.example", "evil.example:8000", "localhost.evil.example",
                           "127.0.0.1.evil.example", "[::2]:8000", "0.0.0.0:8000", "box.example.evil"}) {
    EXPECT_EQ(status(host), 403) << host;
    EXPECT_EQ(status(host, "/metrics"), 403) << host;
  }
  EXPECT_THAT(
      ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n").body,
      HasSubstr("answers to localhost, 127.0.0.1, [::1], box.example, and the Host of this request is "
                "\\\"evil.example\\\"; --allowed-hosts adds names"));
}

}  // namespace
}  // namespace sparrow
