// SPDX-License-Identifier: Apache-2.0
// A stream says what the whole answer says, however many tokens fall into one write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <random>
#include <thread>

#include "server/openai/generation.h"
#include "support/openai_answers.h"
#include "support/openai_requests.h"
#include "support/service_fixture.h"

namespace sparrow::openai {
namespace {

using test::read_stream;
using test::read_whole;
using test::ReadAnswer;

constexpr std::string_view kNs = "]<]minimax[>[";

std::string invoke(std::string_view name, std::string_view value) {
  return strf("{0}<invoke name=\"{1}\">{0}<n>{2}{0}</n>{0}<m>{2}x{0}</m>{0}</invoke>\n", kNs, name, value);
}
std::string block(const std::string& invokes) {
  return strf("{0}<tool_call>\n{1}{0}</tool_call>", kNs, invokes);
}

struct StreamCase {
  const char* name;
  Endpoint endpoint;
  std::string fields;
  std::vector<std::string> outputs;
  FinishReason reason = FinishReason::kStop;

  friend void PrintTo(const StreamCase& it, std::ostream* out) { *out << it.name; }
};

std::vector<StreamCase> stream_cases() {
  const std::string think = "<mm:think>the lazy dog</mm:think>", bird = "fox \xf0\x9f\x90\xa6 dog";
  const std::string calls = block(invoke("f", "3") + invoke("g", "four") + invoke("f", "5"));
  const std::string tools =
      R"("messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}},)"
      R"({"type":"function","function":{"name":"g"}}])";
  const std::string chat = R"("messages":[{"role":"user","content":"hi"}])";
  const std::string chat_logprobs = R"(,"logprobs":true,"top_logprobs":1)";
  return {
      {"Content", Endpoint::kChat, chat, {bird}},
      {"ThinkingThenContent", Endpoint::kChat, chat, {think + bird}},
      {"ThinkingThenCalls", Endpoint::kChat, tools, {think + calls}},
      {"ThinkingContentCalls", Endpoint::kChat, tools, {think + "the fox " + calls}},
      {"ContentBetweenCalls", Endpoint::kChat, tools, {calls + "and then " + calls + "the end"}},
      {"CutOffInACall", Endpoint::kChat, tools, {think + calls.substr(0, 60)}, FinishReason::kLength},
      {"Logprobs", Endpoint::kChat, tools + chat_logprobs, {think + "the fox " + calls}},
      {"SeveralChoices",
       Endpoint::kChat,
       tools + R"(,"n":3)" + chat_logprobs,
       {think + bird, calls, think + "the fox " + calls}},
      {"StopString", Endpoint::kChat, chat + R"(,"stop":["dog \n"],"n":2)", {think + "fox dog \n x", bird}},
      {"Text", Endpoint::kCompletion, R"("prompt":"the fox")", {think + bird}},
      {"TextLogprobs", Endpoint::kCompletion, R"("prompt":"the fox","logprobs":1)", {bird}},
      {"TextEcho",
       Endpoint::kCompletion,
       R"("prompt":["the fox","a dog"],"n":2,"echo":true,"logprobs":1)",
       {bird, "lazy", "the quick brown", bird + bird}},
  };
}

class StreamTest : public OpenAiRequests, public testing::WithParamInterface<StreamCase> {
 protected:
  Generation generation(const std::string& more) {
    const StreamCase& it = GetParam();
    return Generation(model_, prepare(it.endpoint, "{" + it.fields + more + "}", model_).value(), "r1");
  }

  // The outputs' events as an engine sends them: a token of each in turn.
  std::vector<TokenEvent> events() const {
    std::vector<std::vector<int32_t>> ids;
    size_t longest = 0;
    for (const std::string& text : GetParam().outputs) {
      ids.push_back(tokenizer_.encode(text).value());
      longest = std::max(longest, ids.back().size());
    }
    std::vector<TokenEvent> out;
    for (size_t i = 0; i < longest; ++i)
      for (size_t output = 0; output < ids.size(); ++output) {
        if (i >= ids[output].size()) continue;
        const int32_t id = ids[output][i];
        TokenEvent event{.output = static_cast<int>(output), .id = id};
        event.logprobs = TokenLogprobs{.token = {id, -0.5f - static_cast<float>(i)}, .top = {{id, -1.0f}}};
        if (i + 1 == ids[output].size()) event.finish = GetParam().reason;
        out.push_back(std::move(event));
      }
    return out;
  }

  // `piece` tells how many events come before the next write.
  template <typename Piece>
  ReadAnswer stream(Piece piece) {
    Generation streamed = generation(R"(,"stream":true,"stream_options":{"include_usage":true})");
    std::string out;
    size_t left = piece();
    for (TokenEvent& event : events()) {
      streamed.take(std::move(event));
      if (--left > 0) continue;
      streamed.append_chunks(out);
      left = piece();
    }
    streamed.append_chunks(out);
    EXPECT_TRUE(streamed.finished());
    return read_stream(out);
  }
};

TEST_P(StreamTest, AddsUpToTheWholeAnswer) {
  Generation whole = generation("");
  for (TokenEvent& event : events()) whole.take(std::move(event));
  ASSERT_TRUE(whole.finished());
  const ReadAnswer expected = read_whole(whole.response());
  ASSERT_EQ(expected.choices.size(), GetParam().outputs.size());
  for (const size_t size : {1, 2, 3, 4, 5, 7, 11, 16, 23, 64, 1000})
    EXPECT_EQ(stream([size] { return size; }), expected) << size << " events in a write";
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    EXPECT_EQ(stream([&random] { return 1 + random() % 24; }), expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(OpenAi, StreamTest, testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sparrow::openai

namespace sparrow {
namespace {

using namespace test;

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

  std::latch held_{1}, release_{1};
};

class ServiceStreamsAtOnce : public ServiceStreams, public testing::WithParamInterface<int> {};

TEST_P(ServiceStreamsAtOnce, EqualTheirWholeAnswers) {
  start({.cache_tokens = kBlocks * kBlockTokens,
         .threads = 1,
         .max_model_tokens = 2048,
         .max_batch_tokens = 256,
         .max_sequences = 2,
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
  Request first{.prompts = {{1}}, .n = 2, .max_tokens = 2000, .ignore_eos = true};
  auto blocker = engine_->submit(first).value();
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

}  // namespace
}  // namespace sparrow
