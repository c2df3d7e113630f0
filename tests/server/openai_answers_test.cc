// SPDX-License-Identifier: Apache-2.0
// Engine events in, answers out: stop strings, reasoning, calls, log-probabilities, streamed and whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/api/stop_strings.h"
#include "server/openai/generation.h"
#include "text/synthetic/synthetic_template.h"
#include "text/synthetic/tokenizer_training.h"

namespace sparrow::openai {
namespace {

using testing::HasSubstr;
using testing::Not;

// Feeds the text in random pieces; returns what came out and whether a stop string was found.
std::pair<std::string, std::string> run_stops(std::vector<std::string> stops, bool include,
                                              std::string_view text, uint32_t seed) {
  StopStrings matcher(std::move(stops), include);
  std::mt19937 random(seed);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::min<size_t>(1 + random() % 4, text.size() - at);
    if (matcher.feed(text.substr(at, length), out)) return {out, matcher.found()};
    at += length;
  }
  matcher.finish(out);
  return {out, ""};
}

TEST(StopStrings, AreFoundAcrossChunkBoundaries) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    EXPECT_EQ(run_stops({"END"}, false, "abcENDdef", seed),
              std::pair(std::string("abc"), std::string("END")));
    EXPECT_EQ(run_stops({"END"}, true, "abcENDdef", seed),
              std::pair(std::string("abcEND"), std::string("END")));
    EXPECT_EQ(run_stops({"aab"}, false, "aaaab", seed).first, "aa");
    EXPECT_EQ(run_stops({"xyz"}, false, "abcxy", seed), std::pair(std::string("abcxy"), std::string("")));
    EXPECT_EQ(run_stops({"\n\n", "stop"}, false, "a\nstop\n\n", seed).first, "a\n");
    EXPECT_EQ(run_stops({}, false, "plain", seed).first, "plain");
  }
}

// Trained once: a test needs some tokenizer, not a fresh one.
const Tokenizer& shared_tokenizer() {
  static const Tokenizer tokenizer =
      Tokenizer::parse(train_tokenizer("the quick brown fox jumps over the lazy dog", 400).value(),
                       trained_tokenizer_config())
          .value();
  return tokenizer;
}

class OpenAiAnswers : public testing::Test {
 protected:
  OpenAiAnswers()
      : tokenizer_(shared_tokenizer()),
        cache_(tokenizer_),
        template_(ChatTemplate::parse(synthetic_chat_template()).value()),
        model_{.names = {"m3"},
               .tokenizer = tokenizer_,
               .encode_cache = cache_,
               .chat_template = &template_,
               .defaults = {.vocab_size = 400, .max_model_tokens = 4096},
               .constraints = &constraints_} {}

  Generation chat(const std::string& extra) {
    return Generation(
        model_,
        prepare(kChatApi, R"({"messages":[{"role":"user","content":"hi"}])" + extra + "}", model_).value(),
        "r1");
  }
  Generation completion(const std::string& fields) {
    return Generation(model_, prepare(kCompletionApi, "{" + fields + "}", model_).value(), "r1");
  }

  // The text as the engine would send it; the last event has the reason.
  void say(Generation& generation, std::string_view text, FinishReason reason = FinishReason::kStop,
           int output = 0, std::string* streamed = nullptr) {
    const std::vector<int32_t> ids = tokenizer_.encode(text).value();
    for (size_t i = 0; i < ids.size(); ++i) {
      TokenEvent event{.output = output, .id = ids[i]};
      event.logprobs = TokenLogprobs{.token = {ids[i], -0.5f}, .top = {{ids[i], -0.5f}, {1, -2.0f}}};
      if (i + 1 == ids.size()) event.finish = reason;
      event.cached_tokens = 3;
      generation.take(std::move(event));
      if (streamed) generation.append_chunks(*streamed);
    }
  }

  const Tokenizer& tokenizer_;
  EncodeCache cache_;
  ChatTemplate template_;
  ConstraintStore constraints_{tokenizer_, 400};
  ServedModel model_;
};

TEST_F(OpenAiAnswers, AWholeChatAnswer) {
  Generation generation = chat("");
  say(generation, "<mm:think>so</mm:think>the fox");
  ASSERT_TRUE(generation.finished());
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("id":"chatcmpl-r1","object":"chat.completion")"));
  EXPECT_THAT(json, HasSubstr(R"("content":"the fox")"));
  EXPECT_THAT(json, HasSubstr(R"("reasoning":"so","reasoning_content":"so")"));
  EXPECT_THAT(json, HasSubstr(R"("finish_reason":"stop")"));
  EXPECT_THAT(json, HasSubstr(R"("cached_tokens":3)"));
  EXPECT_THAT(json, HasSubstr(R"("logprobs":null)"));
}

TEST_F(OpenAiAnswers, ToolCallsChangeTheFinishReason) {
  Generation generation = chat(
      R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}}])");
  const std::string ns = "]<]minimax[>[";
  say(generation, ns + "<tool_call>\n" + ns + "<invoke name=\"f\">" + ns + "<n>3" + ns + "</n>" + ns +
                      "</invoke>\n" + ns + "</tool_call>");
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("finish_reason":"tool_calls")"));
  EXPECT_THAT(json, HasSubstr(R"("function":{"name":"f","arguments":"{\"n\":3}"})"));
  EXPECT_THAT(json, HasSubstr(R"("content":null)"));
  EXPECT_THAT(json, Not(HasSubstr("minimax")));
}

TEST_F(OpenAiAnswers, ANamedCallEndsTheAnswer) {
  Generation generation = chat(
      R"(,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}})");
  const std::string ns = "]<]minimax[>[";
  say(generation,
      "<mm:think>so</mm:think>" + ns + "<tool_call>\n" + ns + "<invoke name=\"f\">" + ns + "<a>x" + ns +
          "</a>" + ns + "</invoke>and more",
      FinishReason::kStop, 0);
  EXPECT_TRUE(generation.finished());
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("reasoning":"so")"));
  EXPECT_THAT(json, HasSubstr(R"("name":"f","arguments":"{\"a\":\"x\"}")"));
  EXPECT_THAT(json, HasSubstr(R"("finish_reason":"tool_calls")"));
  EXPECT_THAT(json, Not(HasSubstr("and more")));
}

TEST_F(OpenAiAnswers, AStopStringEndsTheAnswerBeforeIt) {
  Generation generation = chat(R"(,"stop":"brown")");
  say(generation, "the quick brown fox", FinishReason::kLength);
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("content":"the quick ")"));
  EXPECT_THAT(json, HasSubstr(R"("finish_reason":"stop","stop_reason":"brown")"));
}

// Nobody reads markup, and what is held back of it is never shown.
TEST_F(OpenAiAnswers, AStopStringIsOfTextAndNotOfCalls) {
  const std::string call =
      R"(]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="f">]<]minimax[>[<a>x<y]<]minimax[>[</a>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>)";
  const auto answer = [&](const std::string& stop, const std::string& text) {
    Generation generation =
        chat(strf(R"(,"tools":[{{"function":{{"name":"f"}}}}],"stop":[{}])", json_quoted(stop)));
    say(generation, text);
    return generation.response();
  };
  for (const char* stop : {"\n", "<", ">", "]", "]<", "f", "name=", "invoke", "x<y", "o]<", "o\n"}) {
    const std::string json = answer(stop, "<mm:think>so</mm:think>th o" + call + "then");
    EXPECT_THAT(json, HasSubstr(R"("content":"th othen")")) << stop;
    EXPECT_THAT(json, HasSubstr(R"("name":"f","arguments":"{\"a\":\"x<y\"}")")) << stop;
    EXPECT_THAT(json, HasSubstr(R"("finish_reason":"tool_calls","stop_reason":null)")) << stop;
  }
  EXPECT_THAT(answer("hen", "th o" + call + "then"), HasSubstr(R"("content":"th ot")"));
  EXPECT_THAT(answer("oth", "th o" + call + "then"), HasSubstr(R"("content":"th othen")")) << "two texts";
  // Of a thought too, and not of its end or of what is left out behind it.
  EXPECT_THAT(answer("o", "<mm:think>so</mm:think>th"), HasSubstr(R"("content":null)"));
  EXPECT_THAT(answer("\n", "<mm:think>so</mm:think>\n\nth"), HasSubstr(R"("stop_reason":"\n")"));
  EXPECT_THAT(answer("<", "<mm:think>so</mm:think>th <"), HasSubstr(R"("content":"th ")"));
  EXPECT_THAT(answer("<", "th <"), HasSubstr(R"("stop_reason":"<")"));
}

TEST_F(OpenAiAnswers, AStopIdIsToldByItsNumber) {
  const std::vector<int32_t> ids = tokenizer_.encode("fox").value();
  const std::string stop = strf(R"(,"stop_token_ids":[{}])", ids.back());
  Generation whole = chat(stop), streamed = chat(stop + R"(,"stream":true)"), other = chat("");
  std::string out;
  say(whole, "fox");
  say(streamed, "fox", FinishReason::kStop, 0, &out);
  say(other, "fox");
  const std::string reason = strf(R"("finish_reason":"stop","stop_reason":{})", ids.back());
  EXPECT_THAT(whole.response(), HasSubstr(reason));
  EXPECT_THAT(out, HasSubstr(reason));
  EXPECT_THAT(other.response(), HasSubstr(R"("stop_reason":null)")) << "an end id of the model's";
  Generation text = completion(R"("prompt":"a")" + stop), cut = completion(R"("prompt":"a")" + stop);
  say(text, "fox");
  EXPECT_THAT(text.response(), HasSubstr(reason));
  say(cut, "fox", FinishReason::kLength);
  EXPECT_THAT(cut.response(), HasSubstr(R"("finish_reason":"length","stop_reason":null)"));
}

TEST_F(OpenAiAnswers, AStreamAddsUpToTheWholeAnswer) {
  Generation generation =
      chat(R"(,"stream":true,"stream_options":{"include_usage":true},"logprobs":true,"top_logprobs":1)");
  std::string out;
  say(generation, "<mm:think>so be it</mm:think>the lazy dog \xf0\x9f\x90\xa6", FinishReason::kStop, 0, &out);
  std::string content, reasoning, finish;
  int usages = 0, roles = 0;
  size_t logprobs = 0;
  for (size_t at = 0; at < out.size();) {
    const size_t end = out.find("\n\n", at);
    const std::string line = out.substr(at, end - at);
    at = end + 2;
    ASSERT_TRUE(line.starts_with("data: {"));
    const JsonDocument document = JsonDocument::parse(line.substr(6), "chunk").value();
    const Json root = document.root();
    if (root.at("choices").value().size() == 0) {
      ++usages;
      continue;
    }
    const Json choice = root.at("choices").value().element(0);
    const Json delta = choice.at("delta").value();
    if (delta.find("role")) ++roles;
    content += delta.string_or("content", "").value();
    reasoning += delta.string_or("reasoning", "").value();
    EXPECT_EQ(delta.string_or("reasoning", "").value(), delta.string_or("reasoning_content", "").value());
    if (const auto l = choice.find("logprobs")) logprobs += l->at("content").value().size();
    finish += choice.string_or("finish_reason", "").value();
  }
  EXPECT_EQ(content, "the lazy dog \xf0\x9f\x90\xa6");
  EXPECT_EQ(reasoning, "so be it");
  EXPECT_EQ(finish, "stop");
  EXPECT_EQ(usages, 1);
  EXPECT_EQ(roles, 1);
  EXPECT_EQ(static_cast<int64_t>(logprobs), generation.usage().completion_tokens);
}

TEST_F(OpenAiAnswers, ChoicesAreKeptApart) {
  Generation generation = chat(R"(,"n":2)");
  say(generation, "fox", FinishReason::kStop, 1);
  EXPECT_FALSE(generation.finished());
  say(generation, "dog", FinishReason::kLength, 0);
  EXPECT_TRUE(generation.finished());
  EXPECT_THAT(generation.finish_reasons(), testing::ElementsAre("length", "stop"));
  EXPECT_THAT(generation.response(), HasSubstr(R"("index":1,"message":{"role":"assistant","content":"fox")"));
}

TEST_F(OpenAiAnswers, ReasoningTokensAreCountedWithoutTheTags) {
  Generation generation = chat("");
  const auto thought = static_cast<int64_t>(tokenizer_.encode("the quick fox").value().size());
  say(generation, "<mm:think>the quick fox</mm:think>dog");
  EXPECT_EQ(generation.usage().reasoning_tokens, thought);
}

TEST_F(OpenAiAnswers, UsageIsThatOfAllOutputs) {
  Generation generation = completion(R"("prompt":["the","fox"],"n":2)");
  const auto tokens = static_cast<int64_t>(tokenizer_.encode("lazy dog").value().size());
  for (int output = 0; output < 4; ++output) say(generation, "lazy dog", FinishReason::kStop, output);
  EXPECT_EQ(generation.usage().completion_tokens, 4 * tokens);
  EXPECT_EQ(generation.usage().cached_tokens, 2 * 3) << "of each prompt once";
}

TEST_F(OpenAiAnswers, WhatIsLeftToWriteIsKnown) {
  Generation generation = chat(R"(,"stream":true,"logprobs":true,"top_logprobs":2)");
  EXPECT_EQ(generation.num_unwritten(), 0);
  say(generation, "the fox");
  EXPECT_EQ(generation.num_unwritten(), 3 * generation.usage().completion_tokens);
  std::string out;
  generation.append_chunks(out);
  EXPECT_EQ(generation.num_unwritten(), 0);
}

TEST_F(OpenAiAnswers, EchoAndLogprobsOfACompletion) {
  Generation generation = completion(R"("prompt":"the fox","echo":true,"logprobs":2)");
  TokenEvent event{.output = 0, .id = tokenizer_.encode("x").value()[0]};
  event.logprobs = TokenLogprobs{.token = {*event.id, -1.0f}, .top = {}};
  event.finish = FinishReason::kLength;
  const auto prompt = tokenizer_.encode("the fox").value();
  for (size_t i = 1; i < prompt.size(); ++i)
    event.prompt_logprobs.push_back({.token = {prompt[i], -0.25f}, .top = {}});
  generation.take(std::move(event));
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("text":"the foxx")"));
  EXPECT_THAT(json, HasSubstr(R"("text_offset":[0)"));
  EXPECT_THAT(json, HasSubstr(R"("token_logprobs":[null,-0.25)"));
  EXPECT_THAT(json, HasSubstr(R"("finish_reason":"length")"));
}

TEST_F(OpenAiAnswers, AnEchoedStreamAddsUpToTheWholeAnswer) {
  // A character in several tokens: offsets count tokens, not what could be sent.
  const std::string prompt = "the fox \xf0\x9f\x90\xa6", answer = "lazy \xf0\x9f\x90\xa6 dog";
  const auto prompt_ids = tokenizer_.encode(prompt).value(), ids = tokenizer_.encode(answer).value();
  const auto run = [&](Generation& generation, std::string* streamed) {
    for (size_t i = 0; i < ids.size(); ++i)
      for (int output = 0; output < 2; ++output) {
        TokenEvent event{.output = output, .id = ids[i]};
        event.logprobs = TokenLogprobs{.token = {ids[i], -0.5f}, .top = {{ids[i], -0.5f}}};
        if (i == 0 && output == 0)
          for (size_t p = 1; p < prompt_ids.size(); ++p)
            event.prompt_logprobs.push_back({.token = {prompt_ids[p], -0.25f}, .top = {{7, -0.125f}}});
        if (i + 1 == ids.size()) event.finish = FinishReason::kLength;
        generation.take(std::move(event));
        if (streamed) generation.append_chunks(*streamed);
      }
  };
  const std::string fields = strf(R"("prompt":"{}","echo":true,"logprobs":1,"n":2)", prompt);
  Generation whole = completion(fields), streaming = completion(fields + R"(,"stream":true)");
  std::string out;
  run(whole, nullptr);
  run(streaming, &out);
  const JsonDocument expected = JsonDocument::parse(whole.response(), "answer").value();
  static constexpr std::array kLists = {"text_offset", "token_logprobs", "tokens", "top_logprobs"};
  std::array<std::string, 2> texts;
  std::array<std::array<std::string, 4>, 2> lists;
  for (size_t at = 0, end; (end = out.find("\n\n", at)) != out.npos; at = end + 2) {
    const JsonDocument chunk = JsonDocument::parse(out.substr(at + 6, end - at - 6), "chunk").value();
    const Json choice = chunk.root().at("choices").value().element(0);
    const size_t index = static_cast<size_t>(choice.at("index").value().as_int(0, 1).value());
    texts[index] += choice.at("text").value().string_view();
    for (size_t l = 0; l < kLists.size(); ++l) {
      const Json list = choice.at("logprobs").value().at(kLists[l]).value();
      for (size_t i = 0; i < list.size(); ++i) lists[index][l] += list.element(i).brief() + ' ';
    }
  }
  for (size_t index = 0; index < 2; ++index) {
    const Json choice = expected.root().at("choices").value().element(index);
    EXPECT_EQ(texts[index], choice.at("text").value().string_view());
    EXPECT_EQ(texts[index], prompt + answer);
    for (size_t l = 0; l < kLists.size(); ++l) {
      const Json list = choice.at("logprobs").value().at(kLists[l]).value();
      EXPECT_EQ(list.size(), prompt_ids.size() + ids.size());
      std::string all;
      for (size_t i = 0; i < list.size(); ++i) all += list.element(i).brief() + ' ';
      EXPECT_EQ(lists[index][l], all) << kLists[l];
    }
  }
}

TEST_F(OpenAiAnswers, TokensThatAreNotUtf8AreToldApartInLogprobs) {
  Generation generation = completion(R"("prompt":"a","logprobs":4,"max_tokens":1)");
  TokenEvent event{.output = 0, .id = 0xf0};  // the ids of bytes are the bytes
  const int32_t unused = 300;                 // ids without a token decode to nothing
  ASSERT_EQ(tokenizer_.bytes_of(unused).value(), "");
  event.logprobs = TokenLogprobs{.token = {0xf0, -1.0f},
                                 .top = {{0xf0, -1.0f}, {0x9f, -2.0f}, {unused, -3.0f}, {unused + 1, -4.0f}}};
  event.finish = FinishReason::kLength;
  generation.take(std::move(event));
  const std::string json = generation.response();
  EXPECT_THAT(json, HasSubstr(R"("tokens":["bytes:\\xf0"])"));
  EXPECT_THAT(json, HasSubstr(R"("top_logprobs":[{"bytes:\\xf0":-1.0,"bytes:\\x9f":-2.0,"":-3.0}])"));
}

TEST_F(OpenAiAnswers, APromptIsEchoedThoughNothingIsGenerated) {
  Generation generation = completion(R"("prompt":"the fox","echo":true,"max_tokens":0,"stream":true)");
  TokenEvent event{.output = 0};
  event.finish = FinishReason::kLength;
  generation.take(std::move(event));
  std::string out;
  generation.append_chunks(out);
  EXPECT_THAT(out, HasSubstr(R"("text":"the fox")"));
  EXPECT_THAT(out, HasSubstr(R"("finish_reason":"length")"));
}

TEST_F(OpenAiAnswers, AFailedOutputIsAFailureOfTheRequest) {
  Generation generation = chat("");
  TokenEvent event{.output = 0};
  event.finish = FinishReason::kError;
  event.error = "the logits are not numbers";
  generation.take(std::move(event));
  ASSERT_TRUE(generation.failure().has_value());
  EXPECT_EQ(generation.failure()->message, "the logits are not numbers");
}

}  // namespace
}  // namespace sparrow::openai
