// SPDX-License-Identifier: Apache-2.0
// The fields of a request, each by what it does to the answer of a running server. What is refused is in
// openai_bad_fields_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json/json.h"
#include "support/server/service_fixture.h"

namespace sparrow {
namespace {

using namespace test;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;

int count_of(std::string_view text, std::string_view part) {
  int count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++count;
  return count;
}

class ServiceFields : public ServiceTest {
 protected:
  struct Answer {
    std::string text, finish_reason;
    int64_t tokens = 0;
  };

  RawResponse complete(const std::string& fields) const {
    return ask(json_post("/v1/completions", R"({"prompt":"the fox")" + fields + "}"));
  }
  // Of the first choice of a text completion.
  Answer answer(const std::string& fields) const {
    const RawResponse response = complete(fields);
    EXPECT_EQ(response.status, 200) << response.body;
    const JsonDocument document = JsonDocument::parse(response.body, "answer").value();
    const Json choice = document.root().at("choices").value().element(0);
    return {.text = choice.at("text").value().as_string().value(),
            .finish_reason = choice.at("finish_reason").value().as_string().value(),
            .tokens =
                document.root().at("usage").value().at("completion_tokens").value().as_int(0, 1000).value()};
  }
  static std::string greedy() { return R"(,"temperature":0,"ignore_eos":true,"max_tokens":24)"; }
  // Greedy output of one token, as long as that may be drawn, and then of another.
  static std::string either(int32_t preferred, int32_t other) {
    return strf(R"(,"temperature":0,"max_tokens":9,"allowed_token_ids":[{0},{1}],"logit_bias":{{"{0}":100}})",
                preferred, other);
  }
  static EngineOptions one_at_a_time() {
    return {.cache_tokens = kBlocks * kBlockTokens,
            .cpu = {.threads = test_threads(), .isa = test_isa()},
            .max_model_tokens = 2048,
            .max_step_tokens = 256,
            .max_step_sequences = 1};
  }
  // A request that runs until somebody reads on: whoever comes after it waits.
  std::unique_ptr<TokenStream> hold_engine() const {
    auto running = engine_->submit({.prompts = {{1, 2, 3}}, .max_tokens = 1500, .ignore_eos = true}).value();
    EXPECT_TRUE(running->next());
    return running;
  }
  int32_t id_of(std::string_view text) const { return shared_tokenizer().encode(text).value().at(0); }
};

TEST_F(ServiceFields, AllowedIdsAndBiasDecideWhatIsDrawn) {
  start();
  EXPECT_EQ(answer(either(id_of("x"), id_of("z"))).text, "xxxxxxxxx");
  EXPECT_EQ(answer(either(id_of("z"), id_of("x"))).text, "zzzzzzzzz");
}

TEST_F(ServiceFields, AStopIdEndsTheAnswerAndMinTokensPutsItOff) {
  start();
  const std::string fields = either(id_of("x"), id_of("z")) + strf(R"(,"stop_token_ids":[{}])", id_of("x"));
  const Answer stopped = answer(fields);
  EXPECT_EQ(stopped.finish_reason, "stop");
  EXPECT_EQ(stopped.tokens, 1);
  const Answer later = answer(fields + R"(,"min_tokens":3)");
  EXPECT_EQ(later.finish_reason, "stop");
  EXPECT_THAT(later.text, testing::StartsWith("zzz"));
  EXPECT_EQ(later.tokens, 4);
}

// What leaves nothing to draw is refused before it runs.
TEST_F(ServiceFields, SomethingMustBeLeftToDraw) {
  start();
  const int32_t end = shared_model().config().eos_token_ids.at(0), x = id_of("x"), z = id_of("z");
  const auto allow = [](int32_t a, int32_t b) { return strf(R"(,"allowed_token_ids":[{},{}])", a, b); };
  const std::string stop_x = strf(R"(,"stop_token_ids":[{}])", x);
  for (const std::string& fields :
       {allow(end, end) + R"(,"min_tokens":2)", allow(x, x) + stop_x + R"(,"min_tokens":1)",
        allow(end, x) + stop_x + R"(,"min_tokens":1)"}) {
    for (const char* stream : {"", R"(,"stream":true)"}) {
      const RawResponse response = complete(fields + stream);
      EXPECT_EQ(response.status, 400) << fields << response.body;
      EXPECT_THAT(response.body, HasSubstr(R"("param":"allowed_token_ids")"));
      EXPECT_THAT(response.body, HasSubstr("leaves nothing to draw"));
    }
  }
  const std::string call = strf(R"(,"allowed_token_ids":[{}])", *shared_tokenizer().id_of("<tool_call>"));
  const std::string tool = R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")";
  EXPECT_EQ(chat(call + tool).status, 400);
  // Enough is left here.
  for (const std::string& fields :
       {allow(end, end), allow(end, x) + R"(,"min_tokens":2)", allow(x, z) + stop_x + R"(,"min_tokens":2)",
        allow(end, end) + R"(,"min_tokens":2,"ignore_eos":true)",
        allow(x, z) + strf(R"(,"logit_bias":{{"{}":-100,"{}":-100}})", x, z),
        allow(end, end) + R"(,"max_tokens":0,"echo":true)"})
    EXPECT_EQ(complete(fields).status, 200) << fields << complete(fields).body;
}

TEST_F(ServiceFields, IgnoreEosGoesOnPastTheEnd) {
  start();
  const std::string fields = either(shared_model().config().eos_token_ids.at(0), id_of("z"));
  EXPECT_EQ(answer(fields).tokens, 1);
  EXPECT_EQ(answer(fields).finish_reason, "stop");
  EXPECT_EQ(answer(fields + R"(,"ignore_eos":true)").tokens, 9);
  EXPECT_EQ(answer(fields + R"(,"ignore_eos":true)").finish_reason, "length");
}

TEST_F(ServiceFields, AStopStringIsLeftOutUnlessItIsWanted) {
  start();
  const std::string fields = either(id_of("x"), id_of("z")) + R"(,"stop":["xxx"])";
  EXPECT_EQ(answer(fields).text, "");
  EXPECT_EQ(answer(fields).finish_reason, "stop");
  EXPECT_EQ(answer(fields + R"(,"include_stop_str_in_output":true)").text, "xxx");
}

TEST_F(ServiceFields, WhatNarrowsTheChoiceToOneTokenIsGreedy) {
  start();
  const std::string greedy_text = answer(greedy()).text;
  const std::string hot = R"(,"temperature":2,"seed":3,"ignore_eos":true,"max_tokens":24)";
  EXPECT_NE(answer(hot).text, greedy_text);
  EXPECT_EQ(answer(hot + R"(,"top_k":1)").text, greedy_text);
  EXPECT_EQ(answer(hot + R"(,"top_p":0.000001)").text, greedy_text);
  EXPECT_EQ(answer(hot + R"(,"min_p":1)").text, greedy_text);
}

TEST_F(ServiceFields, ASeedRepeatsTheDrawsAndAnotherDoesNot) {
  start();
  const std::string hot = R"(,"temperature":2,"ignore_eos":true,"max_tokens":24)";
  EXPECT_EQ(answer(hot + R"(,"seed":3)").text, answer(hot + R"(,"seed":3)").text);
  EXPECT_NE(answer(hot + R"(,"seed":3)").text, answer(hot + R"(,"seed":4)").text);
  EXPECT_NE(answer(hot).text, answer(hot).text);
}

TEST_F(ServiceFields, PenaltiesChangeAGreedyAnswer) {
  start();
  // Without one the same token comes again and again.
  const std::string same =
      strf(R"(,"temperature":0,"max_tokens":60,"allowed_token_ids":[{0},{1}],"logit_bias":{{"{0}":40}})",
           id_of("x"), id_of("z"));
  EXPECT_EQ(answer(same).text, std::string(60, 'x'));
  EXPECT_THAT(answer(same + R"(,"frequency_penalty":2)").text, HasSubstr("z"));
  const std::string text = answer(greedy()).text;
  EXPECT_NE(answer(greedy() + R"(,"presence_penalty":2)").text, text);
  EXPECT_NE(answer(greedy() + R"(,"repetition_penalty":3)").text, text);
}

TEST_F(ServiceFields, LengthsAreKept) {
  start();
  EXPECT_EQ(answer(R"(,"ignore_eos":true)").tokens, 16);
  EXPECT_EQ(answer(R"(,"ignore_eos":true,"max_tokens":5)").tokens, 5);
  EXPECT_EQ(answer(R"(,"max_tokens":0,"echo":true)").text, "the fox");
  EXPECT_THAT(chat(R"(,"max_completion_tokens":3)").body, HasSubstr(R"("completion_tokens":3)"));
}

TEST_F(ServiceFields, EchoPutsThePromptFirst) {
  start();
  const std::string text = answer(greedy()).text;
  EXPECT_EQ(answer(greedy() + R"(,"echo":true)").text, "the fox" + text);
  const std::string with_logprobs = complete(greedy() + R"(,"echo":true,"logprobs":0)").body;
  const JsonDocument document = JsonDocument::parse(with_logprobs, "answer").value();
  const Json logprobs = document.root().at("choices").value().element(0).at("logprobs").value();
  EXPECT_EQ(logprobs.at("tokens").value().size(), 24 + shared_tokenizer().encode("the fox").value().size());
}

TEST_F(ServiceFields, PromptLogprobsHaveAnEntryForEachPromptToken) {
  start();
  EXPECT_THAT(complete(R"(,"max_tokens":1)").body, HasSubstr(R"("prompt_logprobs":null)"));
  const std::string body = complete(R"(,"max_tokens":1,"prompt_logprobs":2)").body;
  const JsonDocument document = JsonDocument::parse(body, "answer").value();
  const Json entries = document.root().at("choices").value().element(0).at("prompt_logprobs").value();
  ASSERT_EQ(entries.size(), shared_tokenizer().encode("the fox").value().size());
  EXPECT_TRUE(entries.element(0).is_null());
  for (size_t i = 1; i < entries.size(); ++i) {
    const Json entry = entries.element(i);
    ASSERT_GE(entry.size(), 2u);
    // The most probable ones by rank; the prompt's own token has its rank wherever it is.
    double last = 0;
    for (size_t k = 0; k < entry.size(); ++k) {
      const double logprob = entry.member(k).at("logprob").value().as_number().value();
      const int64_t rank = entry.member(k).at("rank").value().as_int(1, 1 << 20).value();
      EXPECT_LE(logprob, last);
      EXPECT_TRUE(k < 2 ? rank == static_cast<int64_t>(k) + 1 : rank > 2) << rank;
      EXPECT_TRUE(entry.member(k).at("decoded_token").value().is_string());
      last = logprob;
    }
  }
}

TEST_F(ServiceFields, LogprobsOfAChatHaveAsManyAlternativesAsWanted) {
  start();
  EXPECT_THAT(chat(R"(,"max_tokens":2)").body, HasSubstr(R"("logprobs":null)"));
  const std::string body = chat(R"(,"max_tokens":2,"logprobs":true,"top_logprobs":3)").body;
  const JsonDocument document = JsonDocument::parse(body, "answer").value();
  const Json content =
      document.root().at("choices").value().element(0).at("logprobs").value().at("content").value();
  ASSERT_EQ(content.size(), 2u);
  EXPECT_EQ(content.element(0).at("top_logprobs").value().size(), 3u);
}

TEST_F(ServiceFields, UsageComesInAStreamWhereItIsAskedFor) {
  start();
  const std::string stream = R"(,"max_tokens":3,"stream":true)";
  EXPECT_THAT(chat(stream).body, Not(HasSubstr("usage")));
  const std::string at_the_end = chat(stream + R"(,"stream_options":{"include_usage":true})").body;
  EXPECT_THAT(at_the_end, HasSubstr(R"("usage":null)"));
  EXPECT_THAT(at_the_end, HasSubstr(R"("completion_tokens":3)"));
  const std::string always =
      chat(stream + R"(,"stream_options":{"include_usage":true,"continuous_usage_stats":true})").body;
  EXPECT_THAT(always, Not(HasSubstr(R"("usage":null)")));
  // In every chunk; how many tokens one brings is a matter of time.
  EXPECT_EQ(count_of(always, R"("usage":{)"), count_of(always, R"("object":"chat.completion.chunk")"));
  EXPECT_THAT(always, HasSubstr(R"("completion_tokens":3)"));
}

TEST_F(ServiceFields, ASmallerPriorityRunsFirst) {
  start(one_at_a_time());
  const auto running = hold_engine();
  const auto send = [&](const std::string& fields) {
    RawClient client(server_->port());
    const int before = engine_->stats().live_requests;
    client.send(json_post("/v1/chat/completions", chat_body(fields)));
    while (engine_->stats().live_requests == before) std::this_thread::sleep_for(milliseconds(1));
    return client;
  };
  keys_.set_anonymous_limits({.priorities = {.low = -2, .high = 0}});
  const RawClient first = send(R"(,"max_tokens":2)"), second = send(R"(,"max_tokens":2,"priority":-1)");
  // Beyond what is allowed counts as the most that is: by arrival among themselves.
  const RawClient third = send(R"(,"max_tokens":2,"priority":-2)");
  const RawClient fourth = send(R"(,"max_tokens":2,"priority":-1000000)");
  const RawClient fifth = send(R"(,"max_tokens":2,"priority":1000000)");
  // Nobody has a say where nothing is allowed.
  keys_.set_anonymous_limits({});
  const RawClient sixth = send(R"(,"max_tokens":2,"priority":-2)");
  std::vector<uint64_t> order;
  for (const WaitingSequence& waiting : engine_->waiting()) order.push_back(waiting.request);
  ASSERT_EQ(order.size(), 6u);
  const uint64_t one = *std::min_element(order.begin(), order.end());
  for (uint64_t& request : order) request -= one;
  EXPECT_THAT(order, testing::ElementsAre(2, 3, 1, 0, 4, 5));
}

TEST_F(ServiceFields, WhyARequestWaitsIsInTheMetrics) {
  start(one_at_a_time());
  const auto waiting_for = [&](const std::string& reason) {
    const std::string text = ask(get_request("/metrics")).body;
    const std::string name =
        "sparrow:requests_waiting{model_name=\"m3\",engine=\"0\",reason=\"" + reason + "\"} ";
    const size_t at = text.find(name);
    return at == text.npos ? -1 : std::atoi(text.c_str() + at + name.size());
  };
  EXPECT_EQ(waiting_for("sequences"), 0);
  for (const char* reason : {"turn", "blocks", "shared_prefix", "paused"}) EXPECT_EQ(waiting_for(reason), 0);
  const auto running = hold_engine();
  const auto waiting = engine_->submit({.prompts = {{4, 5}}, .max_tokens = 2}).value();
  while (waiting_for("sequences") == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(waiting_for("sequences"), 1);
}

TEST_F(ServiceFields, WhatIsForTheRecordsChangesNothing) {
  start();
  const std::string fields =
      R"(,"user":"u","metadata":{"a":"b"},"service_tier":"auto","store":false,"best_of":1)"
      R"(,"use_beam_search":false,"skip_special_tokens":true,"spaces_between_special_tokens":false)";
  EXPECT_EQ(answer(greedy() + fields).text, answer(greedy()).text);
  EXPECT_EQ(chat(R"(,"max_tokens":2,"safety_identifier":"s","prompt_cache_key":"k",)"
                 R"("prompt_cache_retention":"in_memory","modalities":["text"],)"
                 R"("response_format":{"type":"text"})")
                .status,
            200);
}

}  // namespace
}  // namespace sparrow
