// SPDX-License-Identifier: Apache-2.0
// Responses and Messages as clients see them: keys, errors in their own shape, streams, stored responses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/strf.h"
#include "server/api/chat_body.h"
#include "support/server/api_answers.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kAnthropic = "anthropic-version: 2023-06-01\r\n";

std::string message_body(const std::string& more = R"(,"max_tokens":3)") {
  return R"({"messages":[{"role":"user","content":"the fox"}],"ignore_eos":true)" + more + "}";
}
std::string message(const std::string& more = R"(,"max_tokens":3)", const std::string& fields = kAnthropic) {
  return json_post("/v1/messages", message_body(more), fields);
}
std::string response_request(const std::string& more = "", int max_tokens = 3) {
  return json_post(
      "/v1/responses",
      strf(R"({{"input":"the fox","ignore_eos":true,"max_output_tokens":{}{}}})", max_tokens, more));
}
// Goes on in the background until it is cancelled.
std::string long_run(const std::string& more = "") {
  return response_request(R"(,"background":true)" + more, 1500);
}

// The error's type and status, of an answer in Anthropic's shape.
std::string anthropic_error(const RawResponse& response) {
  const auto document = JsonDocument::parse(response.body, "answer");
  if (!document.ok() || text_of(document->root(), "type") != "error")
    return "another shape: " + response.body;
  EXPECT_NE(text_of(document->root(), "request_id"), "");
  return strf("{} {}", response.status, text_of(document->root().at("error").value(), "type"));
}

std::string member(const RawResponse& response, std::string_view name) {
  return text_of(JsonDocument::parse(response.body, "answer").value().root(), name);
}

class ServiceApis : public ServiceTest {
 protected:
  // A server that takes one sequence at a time, and has one that runs until somebody reads on.
  auto start_busy() {
    start({.cache_tokens = kBlocks * kBlockTokens,
           .cpu = {.threads = test_threads(), .isa = test_isa()},
           .max_model_tokens = 2048,
           .max_step_tokens = 256,
           .max_step_sequences = 1});
    auto running = engine_->submit({.prompts = {{1, 2, 3}}, .max_tokens = 1500, .ignore_eos = true}).value();
    EXPECT_TRUE(running->next());
    return running;
  }
  RawResponse get(const std::string& path) { return ask(get_request(path)); }
  RawResponse remove(const std::string& path) {
    return ask(strf("DELETE {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path));
  }
  // When its status is none of these any more.
  RawResponse get_once_not(const std::string& path, const std::set<std::string>& statuses) {
    RawResponse now = get(path);
    for (const auto deadline = std::chrono::steady_clock::now() + kPatience;
         statuses.contains(member(now, "status")) && std::chrono::steady_clock::now() < deadline;
         now = get(path))
      std::this_thread::sleep_for(milliseconds(2));
    return now;
  }
  RawResponse cancel(const std::string& id) {
    return ask(post_request("/v1/responses/" + id + "/cancel", ""));
  }
};

TEST_F(ServiceApis, WholeAndStreamedAnswers) {
  start();
  const RawResponse whole = ask(message());
  ASSERT_EQ(whole.status, 200) << whole.body;
  EXPECT_THAT(whole.body, HasSubstr(R"("output_tokens":3)"));
  const RawResponse stream = ask(message(R"(,"max_tokens":3,"stream":true)"));
  EXPECT_EQ(stream.header("content-type"), "text/event-stream");
  EXPECT_EQ(read_events(stream.body).back().type, "message_stop");
  const RawResponse response = ask(response_request());
  ASSERT_EQ(response.status, 200) << response.body;
  EXPECT_EQ(member(response, "status"), "incomplete");
  const RawResponse events = ask(response_request(R"(,"stream":true)"));
  EXPECT_EQ(read_events(events.body).back().type, "response.incomplete");
  EXPECT_THAT(events.body, Not(HasSubstr("[DONE]")));
  EXPECT_THAT(ask(json_post("/v1/messages/count_tokens?beta=true", message_body(""))).body,
              HasSubstr(R"({"input_tokens":)"));
}

TEST_F(ServiceApis, KeysMayComeInEitherField) {
  ASSERT_TRUE(keys_.add("k").ok());
  start();
  EXPECT_EQ(ask(message(R"(,"max_tokens":1)", "x-api-key: k\r\n")).status, 200);
  EXPECT_EQ(ask(message(R"(,"max_tokens":1)", "Authorization: Bearer k\r\n")).status, 200);
  EXPECT_EQ(ask(message(R"(,"max_tokens":1)", "Authorization: Bearer x\r\nx-api-key: k\r\n")).status, 200);
  EXPECT_EQ(anthropic_error(ask(message("", "x-api-key: wrong\r\n"))), "401 authentication_error");
  EXPECT_EQ(anthropic_error(ask(message(""))), "401 authentication_error");
}

TEST_F(ServiceApis, ErrorsHaveTheShapeOfTheApi) {
  ASSERT_TRUE(keys_.add("k", "", {.max_requests = 1}).ok());
  start();
  const std::string key = "x-api-key: k\r\n";
  EXPECT_EQ(anthropic_error(ask(message(R"(,"max_tokens":"x")", key))), "400 invalid_request_error");
  EXPECT_EQ(anthropic_error(ask(message(R"(,"max_tokens":1,"model":"x")", key))), "404 not_found_error");
  // What Anthropic's own loop over tools asks for first, and goes on without where it is told so.
  EXPECT_THAT(ask(message(R"(,"max_tokens":1,"thread":{"type":"create"})", key)).body,
              HasSubstr(R"("details":{"error_code":"thread_unsupported_request"}})"));
  EXPECT_EQ(anthropic_error(ask(get_request("/v1/messages", key))), "405 invalid_request_error");
  EXPECT_EQ(anthropic_error(ask(get_request("/v1/nothing", kAnthropic))), "404 not_found_error");
  EXPECT_EQ(anthropic_error(ask(post_request("/v1/messages", "{}", key))), "415 invalid_request_error");
  EXPECT_EQ(anthropic_error(ask(strf("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n{}Content-Type: "
                                     "application/json\r\nContent-Length: 99999999999\r\n\r\n",
                                     key))),
            "413 request_too_large");
  RawClient first(server_->port());
  first.send(message(R"(,"max_tokens":1500,"stream":true)", key));
  ASSERT_THAT(first.read_bytes(200), HasSubstr("200"));
  EXPECT_EQ(anthropic_error(ask(message(R"(,"max_tokens":1)", key))), "429 rate_limit_error");
}

TEST_F(ServiceApis, AFullServerIsOverloaded) {
  start({.cache_tokens = kBlocks * kBlockTokens,
         .cpu = {.threads = test_threads(), .isa = test_isa()},
         .max_model_tokens = 2048,
         .max_step_tokens = 256,
         .max_step_sequences = 1,
         .max_queued_requests = 1});
  const auto running =
      engine_->submit({.prompts = {{1, 2, 3}}, .max_tokens = 1500, .ignore_eos = true}).value();
  ASSERT_TRUE(running->next());
  RawClient waiting(server_->port());
  waiting.send(message());
  while (engine_->stats().queued_requests == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(anthropic_error(ask(message())), "529 overloaded_error");
}

TEST_F(ServiceApis, WhileNothingComesThereArePings) {
  keep_alive_ = milliseconds(5);
  const auto running = start_busy();
  RawClient client(server_->port());
  client.send(message(R"(,"max_tokens":1,"stream":true)"));
  const std::string begun = client.read_bytes(900);
  EXPECT_THAT(begun, HasSubstr("event: message_start"));
  EXPECT_THAT(begun, HasSubstr("event: ping\ndata: {\"type\":\"ping\"}"));
}

TEST_F(ServiceApis, AStoredResponseIsThereUntilItIsDeleted) {
  start();
  const RawResponse made = ask(response_request(R"(,"metadata":{"a":"b"})"));
  const std::string id = member(made, "id"), path = "/v1/responses/" + id;
  EXPECT_EQ(get(path).body, made.body);
  const RawResponse items = get(path + "/input_items");
  EXPECT_THAT(items.body, HasSubstr(R"("content":[{"type":"input_text","text":"the fox"}])"));
  EXPECT_EQ(get(path + "/input_items?limit=x").status, 400);
  EXPECT_EQ(get(path + "/input_items?order=up").status, 400);
  EXPECT_EQ(get(path + "/input_items?after=none").status, 400);
  EXPECT_EQ(get(path + "/input_items?order=asc&limit=1").status, 200);
  EXPECT_EQ(get(path + "?stream=false").body, made.body);
  for (const auto& [query, field] : {std::pair("/input_items?before=x", "before"),
                                     {"/input_items?limit=1&limit=2", "limit"},
                                     {"/input_items?after=%zz", "after"},
                                     {"?starting_after=3", "starting_after"},
                                     {"?include[]=x", "include[]"},
                                     {"?stream=true", "stream"}}) {
    const RawResponse refused = get(path + query);
    EXPECT_EQ(refused.status, 400) << query << refused.body;
    EXPECT_THAT(refused.body, HasSubstr(strf(R"("param":"{}")", field)));
  }
  EXPECT_EQ(cancel(id).status, 400) << "it was not made in the background";
  EXPECT_THAT(remove(path).body, HasSubstr(R"("deleted":true)"));
  for (const RawResponse& gone : {get(path), remove(path), get(path + "/input_items"), cancel(id)})
    EXPECT_EQ(gone.status, 404) << gone.body;
  EXPECT_EQ(get("/v1/responses/" + member(ask(response_request(R"(,"store":false)")), "id")).status, 404);
}

TEST_F(ServiceApis, AResponseMayGoOnFromAnother) {
  start();
  const std::string first = member(ask(response_request()), "id");
  const RawResponse second = ask(response_request(strf(R"(,"previous_response_id":"{}")", first)));
  ASSERT_EQ(second.status, 200) << second.body;
  const RawResponse items = get("/v1/responses/" + member(second, "id") + "/input_items?order=asc&limit=2");
  EXPECT_THAT(items.body, HasSubstr(R"("has_more":true)"));
  EXPECT_THAT(items.body, HasSubstr(R"("role":"assistant")"));
  EXPECT_EQ(ask(response_request(R"(,"previous_response_id":"resp_x")")).status, 400);
}

TEST_F(ServiceApis, AnItemMayBeNamedInsteadOfSent) {
  start();
  const auto asked = [&](const std::string& item) {
    return ask(
        json_post("/v1/responses",
                  strf(R"({{"input":[{{"role":"user","content":"a"}},{},{{"role":"user","content":"b"}}],)"
                       R"("max_output_tokens":2,"temperature":0}})",
                       item)));
  };
  const RawResponse first = ask(response_request());
  const auto document = JsonDocument::parse(first.body, "a response");
  const Json item = document.value().root().at("output").value().element(0);
  const RawResponse sent = asked(json_text(item));
  const RawResponse named =
      asked(strf(R"({{"type":"item_reference","id":"{}"}})", item.at("id").value().string_view()));
  ASSERT_EQ(named.status, 200) << named.body;
  const auto input_tokens = [](const RawResponse& response) {
    const auto body = JsonDocument::parse(response.body, "a response");
    return body.value().root().at("usage").value().at("input_tokens").value().as_int(0, 1000).value();
  };
  EXPECT_EQ(input_tokens(named), input_tokens(sent));
  for (const char* id : {"msg_x_0", "msg", "", "_", "msg__0"})
    EXPECT_EQ(asked(strf(R"({{"type":"item_reference","id":"{}"}})", id)).status, 400) << id;
}

TEST_F(ServiceApis, StoredResponsesAreTheKeysOwn) {
  ASSERT_TRUE(keys_.add("a").ok() && keys_.add("b").ok());
  start();
  const auto with_key = [](const std::string& key) { return "Authorization: Bearer " + key + "\r\n"; };
  const std::string id = member(
      ask(json_post("/v1/responses", R"({"input":"the fox","max_output_tokens":2})", with_key("a"))), "id");
  EXPECT_EQ(ask(get_request("/v1/responses/" + id, with_key("a"))).status, 200);
  EXPECT_EQ(ask(get_request("/v1/responses/" + id, with_key("b"))).status, 404);
  EXPECT_EQ(ask(json_post("/v1/responses", strf(R"({{"input":"x","previous_response_id":"{}"}})", id),
                          with_key("b")))
                .status,
            400);
}

TEST_F(ServiceApis, AnAnswerInTheBackgroundIsComeBackFor) {
  start();
  const RawResponse made = ask(response_request(R"(,"background":true)"));
  EXPECT_EQ(member(made, "status"), "queued") << made.body;
  const std::string path = "/v1/responses/" + member(made, "id");
  const RawResponse now = get_once_not(path, {"queued", "in_progress"});
  EXPECT_EQ(member(now, "status"), "incomplete") << now.body;
  EXPECT_THAT(now.body, HasSubstr(R"("output_tokens":3)"));
  EXPECT_TRUE(is_quiet_within(kPatience));
}

TEST_F(ServiceApis, AnAnswerInTheBackgroundMayBeCancelled) {
  start();
  const std::string body = R"({"input":"x","ignore_eos":true,"max_output_tokens":1500,"background":true})";
  const std::string first = member(ask(json_post("/v1/responses", body)), "id");
  EXPECT_EQ(member(cancel(first), "status"), "cancelled");
  EXPECT_EQ(member(get("/v1/responses/" + first), "status"), "cancelled");
  EXPECT_EQ(member(cancel(first), "status"), "cancelled") << "twice is once";
  const std::string second = member(ask(json_post("/v1/responses", body)), "id");
  EXPECT_EQ(remove("/v1/responses/" + second).status, 200);
  EXPECT_TRUE(is_quiet_within(kPatience));
  EXPECT_EQ(get("/v1/responses/" + second).status, 404);
}

TEST_F(ServiceApis, AnAnswerInTheBackgroundWaitsAndThenRuns) {
  const auto running = start_busy();
  const std::string id = member(ask(long_run()), "id"), path = "/v1/responses/" + id;
  EXPECT_EQ(member(get(path), "status"), "queued");
  running->cancel();
  EXPECT_EQ(member(get_once_not(path, {"queued"}), "status"), "in_progress");
  EXPECT_EQ(member(cancel(id), "status"), "cancelled");
}

TEST_F(ServiceApis, WhatIsTooLargeToStoreIsRefusedOrSaysSo) {
  stored_responses_.max_bytes = 1024;
  start();
  const std::string text(1024, 'x');
  const auto asked = [&](const std::string& more) {
    return ask(json_post("/v1/responses",
                         strf(R"({{"input":"{}","ignore_eos":true,"max_output_tokens":3{}}})", text, more)));
  };
  for (const char* name : {"background", "store"}) {
    const RawResponse refused = asked(strf(R"(,"{}":true)", name));
    EXPECT_EQ(refused.status, 400) << refused.body;
    EXPECT_THAT(refused.body, HasSubstr(strf(R"("param":"{}")", name)));
    EXPECT_THAT(refused.body, HasSubstr("--response-memory is 1024"));
  }
  EXPECT_EQ(engine_->stats().requests, 0) << "it is refused before it runs";
  const RawResponse made = asked("");
  EXPECT_THAT(made.body, HasSubstr(R"("store":false)"));
  EXPECT_EQ(get("/v1/responses/" + member(made, "id")).status, 404);
}

// Its input could be stored, and the whole of it cannot.
TEST_F(ServiceApis, AnAnswerThatCannotBeStoredSaysSo) {
  stored_responses_.max_bytes = 1024;
  start();
  const RawResponse whole = ask(response_request(R"(,"store":true)"));
  EXPECT_THAT(whole.body, HasSubstr(R"("store":false)"));
  EXPECT_EQ(get("/v1/responses/" + member(whole, "id")).status, 404);
  const std::string events = ask(response_request(R"(,"stream":true)")).body;
  EXPECT_THAT(events.substr(events.find("event: response.incomplete")), HasSubstr(R"("store":false)"));
  EXPECT_EQ(ask(response_request(R"(,"background":true)")).status, 400);
  EXPECT_TRUE(is_quiet_within(kPatience));
}

TEST_F(ServiceApis, WhatRunsInTheBackgroundMakesNoRoom) {
  stored_responses_.max_bytes = 8192;
  start();
  const std::string large = strf(R"(,"metadata":{{"a":"{}"}})", std::string(4096, 'x'));
  const std::string id = member(ask(long_run(large)), "id"), path = "/v1/responses/" + id;
  const RawResponse refused = ask(long_run(large));
  EXPECT_EQ(refused.status, 429) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("--response-memory"));
  EXPECT_THAT(ask(response_request(large)).body, HasSubstr(R"("store":false)"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(ask(response_request()).body, HasSubstr(R"("store":true)"));
  EXPECT_EQ(get(path).status, 200);
  EXPECT_EQ(member(cancel(id), "status"), "cancelled");
  const RawResponse next = ask(long_run(large));
  EXPECT_EQ(next.status, 200) << next.body;
  EXPECT_EQ(get(path).status, 404) << "it has made room";
  EXPECT_EQ(get("/v1/responses/" + member(next, "id")).status, 200);
}

// What still runs when the server ends is given up.
TEST_F(ServiceApis, TheServerMayEndWhileSomethingRunsInTheBackground) {
  start();
  const std::string body = R"({"input":"x","ignore_eos":true,"max_output_tokens":1500,"background":true})";
  for (int i = 0; i < 5; ++i) EXPECT_EQ(ask(json_post("/v1/responses", body)).status, 200);
}

TEST_F(ServiceApis, WhereNothingIsStoredThatIsSaid) {
  stored_responses_.max_bytes = 0;
  start();
  const RawResponse made = ask(response_request());
  EXPECT_THAT(made.body, HasSubstr(R"("store":false)"));
  for (const char* more :
       {R"(,"store":true)", R"(,"previous_response_id":"resp_x")", R"(,"background":true)"})
    EXPECT_EQ(ask(response_request(more)).status, 400) << more;
  const RawResponse found = get("/v1/responses/" + member(made, "id"));
  EXPECT_EQ(found.status, 400);
  EXPECT_THAT(found.body, HasSubstr("--response-memory 0"));
}

}  // namespace
}  // namespace sparrow
