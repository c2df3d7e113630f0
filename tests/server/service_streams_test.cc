// SPDX-License-Identifier: Apache-2.0
// Streams of a running server: they say what whole answers say, that they wait, and that they failed. And
// what is done and held for answers that have ended, or are large.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "support/server/openai_answers.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using testing::HasSubstr;
using testing::Not;

// The io thread can be held up while the engine goes on, so that all of an answer falls into one write.
class ServiceStreams : public ServiceTest {
 protected:
  static constexpr const char* kHold = "/hold";

  ServiceStreams() {
    num_io_threads_ = 1;
    before_ = [this](const HttpRequest& request) {
      if (request.path != kHold) return;
      held_.count_down();
      release_.wait();
    };
  }
  ~ServiceStreams() override {
    if (!release_.try_wait()) release_.count_down();
  }

  void wait_until(const std::function<bool()>& condition) const {
    while (!condition()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  int32_t id_of(std::string_view text) const { return shared_tokenizer().encode(text).value().at(0); }
  // Random weights come to no end by themselves: what ends thinking and a call comes up now and then.
  std::string body(int i) const {
    const std::string bias =
        strf(R"(,"logit_bias":{{"{}":7,"{}":7}})", id_of("</mm:think>"), id_of("]<]minimax[>["));
    const std::string tools =
        R"(,"tools":[{"type":"function","function":{"name":"find_route"}},{"type":"function","function":{"name":"ping"}}])";
    std::string fields = strf(R"(,"max_tokens":200,"seed":{},"n":{})", i, 1 + i % 2) + bias;
    if (i % 4 != 3) fields += R"(,"chat_template_kwargs":{"thinking_mode":"enabled"})";
    if (i % 3 != 2) fields += tools + R"(,"tool_choice":"required")";
    if (i % 5 == 0) fields += R"(,"logprobs":true,"top_logprobs":2)";
    return strf(R"({{"messages":[{{"role":"user","content":"the fox {}"}}],"temperature":1{})", i, fields);
  }
  static std::string request(const std::string& body, int i) {
    return json_post("/v1/chat/completions", body, strf("X-Request-Id: r{}\r\n", i));
  }

  void start_with_one_sequence() {
    start({.cache_tokens = kBlocks * kBlockTokens,
           .cpu = {.threads = 1},
           .max_model_tokens = 2048,
           .max_step_tokens = 256,
           .max_step_sequences = 1});
  }
  // Keeps all others waiting until it is cancelled: its reader takes nothing.
  std::unique_ptr<TokenStream> block(int n = 1) {
    auto stream = engine_->submit({.prompts = {{1}}, .n = n, .max_tokens = 2000, .ignore_eos = true}).value();
    wait_until([&] {
      const EngineStats stats = engine_->stats();
      return stats.running_sequences + stats.waiting_by_reason[static_cast<size_t>(WaitReason::kPaused)] == n;
    });
    return stream;
  }
  RawClient waiting_stream(const std::string& fields) const {
    RawClient client(server_->port());
    client.send(
        json_post("/v1/chat/completions", chat_body(fields + R"(,"stream":true)"), "Connection: close\r\n"));
    return client;
  }
  static std::string read_until(RawClient& client, std::string_view part) {
    std::string got;
    while (got.find(part) == std::string::npos) {
      const std::string more = client.read_bytes(1);
      if (more.empty()) ADD_FAILURE() << "only " << got;
      if (more.empty()) break;
      got += more;
    }
    return got;
  }
  // The data of chunks, the first of which may be cut.
  static std::string unchunked(const std::string& text) {
    std::string out;
    for (size_t at = 0; (at = text.find("data: ", at)) != text.npos;) {
      const size_t end = text.find("\n\n", at);
      out += text.substr(at, end + 2 - at);
      at = end;
    }
    return out;
  }

  static constexpr const char* kComment = ": keep-alive\n\n";
  std::latch held_{1}, release_{1};
};

class ServiceStreamsAtOnce : public ServiceStreams, public testing::WithParamInterface<int> {};

TEST_P(ServiceStreamsAtOnce, EqualTheirWholeAnswers) {
  start({.cache_tokens = kBlocks * kBlockTokens,
         .cpu = {.threads = 1},
         .max_model_tokens = 2048,
         .max_step_tokens = 256,
         .max_step_sequences = 2,
         .events_per_output = 4096});
  const int streams = GetParam();
  std::vector<ReadAnswer> expected;
  size_t thoughts = 0, calls = 0, contents = 0;
  for (int i = 0; i < streams; ++i) {
    const RawResponse whole = ask(request(body(i) + "}", i));
    ASSERT_EQ(whole.status, 200) << whole.body;
    expected.push_back(read_whole(whole.body));
    for (const auto& [index, choice] : expected.back().choices) {
      thoughts += !choice.reasoning.empty();
      calls += choice.calls.size();
      contents += !choice.content.empty();
    }
  }
  EXPECT_TRUE(streams == 1 || std::min({thoughts, calls, contents}) > 0) << "all kinds are compared";

  // Nobody else runs before this has been cancelled.
  auto blocker = block(2);
  std::vector<RawClient> clients;
  for (int i = 0; i < streams; ++i) {
    clients.emplace_back(server_->port());
    clients.back().send(request(body(i) + R"(,"stream":true,"stream_options":{"include_usage":true}})", i));
  }
  wait_until([&] { return engine_->stats().live_requests == streams + 1; });
  RawClient holder(server_->port());
  holder.send(get_request(kHold));
  held_.wait();
  blocker->cancel();
  wait_until([&] { return engine_->stats().live_requests == 0; });
  release_.count_down();

  for (int i = 0; i < streams; ++i) {
    const RawResponse response = clients[static_cast<size_t>(i)].read_response();
    ASSERT_TRUE(response.complete);
    ReadAnswer got = read_stream(response.body);
    const auto without_cached = [](std::string usage) {  // the whole answer came first
      return usage.substr(0, usage.find("prompt_tokens_details")) +
             usage.substr(usage.find("completion_tokens_details"));
    };
    got.usage = without_cached(got.usage);
    expected[static_cast<size_t>(i)].usage = without_cached(expected[static_cast<size_t>(i)].usage);
    EXPECT_EQ(got, expected[static_cast<size_t>(i)]) << "stream " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Streams, ServiceStreamsAtOnce, testing::Values(1, 16, 64));

// While a stream waits for its turn it says now and then that it is still there.
TEST_F(ServiceStreams, SayThatTheyAreStillThere) {
  keep_alive_ = std::chrono::milliseconds(1);
  start_with_one_sequence();
  const std::string body = chat_body(R"(,"max_tokens":9)");
  const ReadAnswer whole = read_whole(ask(json_post("/v1/chat/completions", body)).body);
  auto blocker = block();
  RawClient client = waiting_stream(R"(,"max_tokens":9)");
  EXPECT_NE(read_until(client, kComment).find("text/event-stream"), std::string::npos);
  read_until(client, kComment);
  blocker->cancel();
  const std::string rest = client.read_all();
  EXPECT_THAT(rest, HasSubstr("data: [DONE]\n\n"));
  ReadAnswer got = read_stream(unchunked(rest));
  got.usage = whole.usage;  // not asked for
  EXPECT_EQ(got, whole);
}

// A stream that has begun can say only in its events that it failed; it ends as all streams do.
TEST_F(ServiceStreams, SayThatTheyFailed) {
  keep_alive_ = std::chrono::milliseconds(1);
  start_with_one_sequence();
  auto blocker = block();
  RawClient client = waiting_stream(R"(,"max_tokens":9)");
  read_until(client, kComment);
  engine_->stop();
  const std::string rest = client.read_all();
  EXPECT_THAT(rest, HasSubstr(R"(data: {"error":{"message":"the server is stopping","type":)"));
  EXPECT_THAT(rest, HasSubstr("}}\n\ndata: [DONE]\n\n"));
  EXPECT_THAT(rest, testing::EndsWith("0\r\n\r\n"));
  EXPECT_THAT(rest, Not(HasSubstr("finish_reason")));
}

// One that has not begun has a status for it.
TEST_F(ServiceStreams, ThatFailBeforeTheyBeginAreRefused) {
  start_with_one_sequence();
  auto blocker = block();
  RawClient client = waiting_stream(R"(,"max_tokens":9)");
  wait_until([&] { return engine_->stats().live_requests == 2; });
  engine_->stop();
  EXPECT_THAT(client.read_all(), testing::StartsWith("HTTP/1.1 503 "));
}

// A stop string ends one choice of several: the engine works on the others only.
TEST_F(ServiceStreams, AChoiceThatAStopStringEndedIsNotWorkedOn) {
  start({.cache_tokens = kBlocks * kBlockTokens,
         .cpu = {.threads = 1},
         .max_model_tokens = 2048,
         .max_step_tokens = 256,
         .max_step_sequences = 2,
         .events_per_output = 4});  // so far can the engine be ahead
  constexpr int kTokens = 400;
  const auto generated = [&](const std::string& more) {
    const int64_t before = engine_->stats().generated_tokens;
    const RawResponse response = ask(json_post(
        "/v1/completions", strf(R"({{"prompt":"the fox","n":2,"temperature":2,"seed":5,"ignore_eos":true,)"
                                R"("max_tokens":{}{}}})",
                                kTokens, more)));
    EXPECT_EQ(response.status, 200) << response.body;
    wait_until([&] { return engine_->stats().live_requests == 0; });
    return std::pair(engine_->stats().generated_tokens - before, response.body);
  };
  const auto [all, body] = generated("");
  ASSERT_EQ(all, 2 * kTokens);
  const ReadAnswer whole = read_whole(body);
  // Letters that are early in the first choice and nowhere in the second.
  std::string stop;
  const std::string &first = whole.choices.at(0).content, &second = whole.choices.at(1).content;
  const auto is_letter = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  for (size_t at = 0; at < first.size() / 3 && stop.empty(); ++at)
    for (const size_t length : {2, 3, 4}) {
      const std::string part = first.substr(at, length);
      if (std::all_of(part.begin(), part.end(), is_letter) && second.find(part) == std::string::npos)
        stop = part;
    }
  ASSERT_NE(stop, "") << first << "\n" << second;
  for (const char* stream : {"", R"(,"stream":true)"}) {
    const auto [some, answer] = generated(strf(R"(,"stop":"{}"{})", stop, stream));
    EXPECT_GE(some, kTokens);
    EXPECT_LT(some, kTokens + kTokens / 2) << stop;
    const ReadAnswer got = *stream ? read_stream(answer) : read_whole(answer);
    EXPECT_EQ(got.choices.at(0).finish_reason, "stop");
    EXPECT_EQ(got.choices.at(1).content, second);
  }
}

// Answers that take much memory wait for each other; those that take none do not.
TEST_F(ServiceStreams, LargeAnswersAtOnceAreBounded) {
  answer_memory_ = 1 << 20;
  start_with_one_sequence();
  const std::string large = R"(,"logprobs":true,"top_logprobs":20,"max_tokens":300)";
  auto blocker = block();
  RawClient first(server_->port());
  first.send(json_post("/v1/chat/completions", chat_body(large)));
  wait_until([&] { return engine_->stats().live_requests == 2; });
  const RawResponse second = chat(large);
  EXPECT_EQ(second.status, 429) << second.body;
  EXPECT_EQ(second.header("retry-after"), "1");
  EXPECT_THAT(second.body, HasSubstr("room for 1 MB"));
  RawClient plain(server_->port());
  plain.send(json_post("/v1/chat/completions", chat_body(R"(,"max_tokens":300)")));
  wait_until([&] { return engine_->stats().live_requests == 3; });
  blocker->cancel();
  EXPECT_EQ(first.read_response().status, 200);
  EXPECT_EQ(plain.read_response().status, 200);
  wait_until([&] { return chat(R"(,"logprobs":true,"top_logprobs":20,"max_tokens":300)").status == 200; });
}

// Too large for one write, and still whole: chunked, and the same as the client reads it.
TEST_F(ServiceStreams, LargeWholeAnswersComeInPieces) {
  start();
  const RawResponse response = chat(R"(,"logprobs":true,"top_logprobs":20,"max_tokens":500)");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.header("content-type"), "application/json");
  EXPECT_TRUE(response.complete);
  EXPECT_GT(response.num_chunks, 2);
  EXPECT_EQ(read_whole(response.body).choices.at(0).logprobs.size(), 500u);
}

}  // namespace
}  // namespace sparrow
