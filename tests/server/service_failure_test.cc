// SPDX-License-Identifier: Apache-2.0
// What clients and balancers see of an engine that has failed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using testing::HasSubstr;

TEST_F(ServiceTest, AFailedEngineIsToldToAll) {
  start();
  for (const char* path : {"/health", "/ready"}) EXPECT_EQ(ask(get_request(path)).status, 200) << path;
  EXPECT_THAT(ask(get_request("/metrics")).body, HasSubstr("sparrow:ranks_alive{model_name=\"m3\"} 1\n"));
  RawClient streaming(server_->port()), whole(server_->port());
  streaming.send(json_post("/v1/chat/completions", chat_body(R"(,"max_tokens":1500,"stream":true)"),
                           "Connection: close\r\n"));
  ASSERT_THAT(streaming.read_bytes(200), HasSubstr("200"));
  whole.send(json_post("/v1/chat/completions", chat_body(R"(,"max_tokens":1500)")));
  while (engine_->stats().live_requests < 2) std::this_thread::yield();

  engine_->fail({Errc::kStopped, "rank 2: its connection was closed"});
  for (const char* path : {"/health", "/ready"}) {
    const RawResponse response = ask(get_request(path));
    EXPECT_EQ(response.status, 503) << path;
    EXPECT_THAT(response.body, HasSubstr("rank 2: its connection was closed"));
  }
  EXPECT_THAT(streaming.read_all(), HasSubstr("rank 2: "));
  const RawResponse answer = whole.read_response();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("rank 2: "));
  const RawResponse refused = ask(json_post("/v1/chat/completions", chat_body("")));
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.body, HasSubstr("rank 2: "));
  EXPECT_THAT(ask(get_request("/metrics")).body, HasSubstr("sparrow:ranks_alive{model_name=\"m3\"} 0\n"));
}

}  // namespace
}  // namespace sparrow
