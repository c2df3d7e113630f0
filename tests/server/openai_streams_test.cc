// SPDX-License-Identifier: Apache-2.0
// A stream says what the whole answer says, however many tokens fall into one write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "server/openai/generation.h"
#include "support/server/openai_answers.h"
#include "support/server/openai_requests.h"

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
  const Api& api;
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
      {"Content", kChatApi, chat, {bird}},
      {"ThinkingThenContent", kChatApi, chat, {think + bird}},
      {"ThinkingThenCalls", kChatApi, tools, {think + calls}},
      {"ThinkingContentCalls", kChatApi, tools, {think + "the fox " + calls}},
      {"ContentBetweenCalls", kChatApi, tools, {calls + "and then " + calls + "the end"}},
      {"CutOffInACall", kChatApi, tools, {think + calls.substr(0, 60)}, FinishReason::kLength},
      {"Logprobs", kChatApi, tools + chat_logprobs, {think + "the fox " + calls}},
      {"SeveralChoices",
       kChatApi,
       tools + R"(,"n":3)" + chat_logprobs,
       {think + bird, calls, think + "the fox " + calls}},
      {"StopString", kChatApi, chat + R"(,"stop":["dog \n"],"n":2)", {think + "fox dog \n x", bird}},
      {"StopStringsAndCalls",
       kChatApi,
       tools + R"(,"stop":["<","fun","og<","x ]","\n","x m"],"n":3)",
       {think + "the fox " + calls + "lazy < dog", think + calls + "<", "the fo\nx"}},
      {"StopStringsAreKept",
       kChatApi,
       tools + R"(,"stop":["x dog","azy"],"include_stop_str_in_output":true,"n":2)",
       {think + "the fox", "fox dog" + calls}},
      {"Text", kCompletionApi, R"("prompt":"the fox")", {think + bird}},
      {"TextLogprobs", kCompletionApi, R"("prompt":"the fox","logprobs":1)", {bird}},
      {"TextEcho",
       kCompletionApi,
       R"("prompt":["the fox","a dog"],"n":2,"echo":true,"logprobs":1)",
       {bird, "lazy", "the quick brown", bird + bird}},
  };
}

class StreamTest : public OpenAiRequests, public testing::WithParamInterface<StreamCase> {
 protected:
  Generation generation(const std::string& more) {
    const StreamCase& it = GetParam();
    return Generation(model_, prepare(it.api, "{" + it.fields + more + "}", model_).value(), "r1");
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

// A reader that lags gets one choice after the other, and in the end all of them.
TEST_P(StreamTest, MayBeWrittenInPieces) {
  Generation whole = generation(""),
             streamed = generation(R"(,"stream":true,"stream_options":{"include_usage":true})");
  for (TokenEvent& event : events()) whole.take(std::move(event));
  for (TokenEvent& event : events()) streamed.take(std::move(event));
  std::string out;
  for (bool more = true; more;) {
    std::string piece;
    more = streamed.append_chunks(piece, 1);
    EXPECT_EQ(more, streamed.num_unwritten() > 0);
    out += piece;
  }
  EXPECT_EQ(read_stream(out), read_whole(whole.response()));
}

TEST_P(StreamTest, AWholeAnswerMayBeWrittenInPieces) {
  const auto answer = [&](size_t bytes) {
    Generation whole = generation(&GetParam().api == &kChatApi ? "" : R"(,"prompt_logprobs":2)");
    for (TokenEvent& event : events()) {
      if (event.output == 0 && whole.usage().completion_tokens == 0)
        event.prompt_logprobs.push_back({.token = {5, -1.0f}, .rank = 7, .top = {{6, -0.5f}}});
      whole.take(std::move(event));
    }
    std::string out;
    size_t largest = 0;
    for (std::string piece; !(piece = whole.response(bytes)).empty(); out += piece)
      largest = std::max(largest, piece.size());
    EXPECT_TRUE(bytes > 300 || largest < 1000) << largest;
    return std::regex_replace(out, std::regex(R"("created":\d+|"call_\w+")"), "");
  };
  const std::string expected = answer(JsonPieces::kAll);
  for (const size_t bytes : {1, 10, 300, 5000}) EXPECT_EQ(answer(bytes), expected) << bytes;
}

INSTANTIATE_TEST_SUITE_P(OpenAi, StreamTest, testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace sparrow::openai
