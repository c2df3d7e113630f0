// SPDX-License-Identifier: Apache-2.0
// Responses: streams have every event in its place and say what the whole answer says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/strf.h"
#include "server/api/chat_body.h"
#include "server/responses/responses.h"
#include "support/server/api_answers.h"

namespace sparrow::responses {
namespace {

using test::SaidCase;
using test::SseEvent;
using test::text_of;
using testing::HasSubstr;

const std::string kBody =
    R"("input":"hi","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}])";

// Reads a stream as strictly as a client could: every event in its place, texts that add up. Gives the last
// event's response.
class Reader {
 public:
  explicit Reader(std::string_view stream) : events_(test::read_events(stream)) {}

  std::string read() {
    for (size_t i = 0; i < events_.size(); ++i)
      EXPECT_EQ(events_[i].data.root().int_or("sequence_number", -1, -1, 1 << 20).value(),
                static_cast<int64_t>(i));
    take("response.created");
    take("response.in_progress");
    for (int index = 0; type() == "response.output_item.added"; ++index) read_item(index);
    const std::string last = type();
    const Json response = data().at("response").value();
    EXPECT_EQ(last, "response." + text_of(response, "status"));
    ++at_;
    EXPECT_EQ(at_, events_.size()) << "there is more after " << last;
    EXPECT_EQ(json_text(response.at("output").value()), "[" + items_ + "]");
    return json_text(response);
  }

 private:
  std::string type() const { return at_ < events_.size() ? events_[at_].type : "the end"; }
  Json data() const { return events_[at_].data.root(); }
  void take(const std::string& wanted) {
    EXPECT_EQ(type(), wanted) << "event " << at_;
    if (at_ < events_.size()) ++at_;
  }
  // The texts of all deltas, which are of this item.
  std::string take_deltas(const std::string& wanted, int index, const std::string& id) {
    std::string text;
    for (; type() == wanted; ++at_) {
      EXPECT_EQ(data().int_or("output_index", -1, -1, 100).value(), index);
      EXPECT_EQ(text_of(data(), "item_id"), id);
      EXPECT_NE(text_of(data(), "delta"), "");
      text += text_of(data(), "delta");
    }
    return text;
  }

  void read_item(int index) {
    EXPECT_EQ(data().int_or("output_index", -1, -1, 100).value(), index);
    const Json item = data().at("item").value();
    const std::string kind = text_of(item, "type"), id = text_of(item, "id");
    EXPECT_EQ(text_of(item, "status"), "in_progress");
    ++at_;
    std::string text;
    if (kind == "function_call") {
      EXPECT_NE(text_of(item, "name"), "");
      text = take_deltas("response.function_call_arguments.delta", index, id);
      EXPECT_EQ(text_of(data(), "arguments"), text);
      take("response.function_call_arguments.done");
      EXPECT_EQ(text_of(data().at("item").value(), "arguments"), text);
      EXPECT_EQ(text_of(data().at("item").value(), "call_id"), text_of(item, "call_id"));
    } else if (kind == "custom_tool_call") {
      text = take_deltas("response.custom_tool_call_input.delta", index, id);
      EXPECT_EQ(text_of(data(), "input"), text);
      take("response.custom_tool_call_input.done");
      EXPECT_EQ(text_of(data().at("item").value(), "input"), text);
    } else {
      const std::string part = kind == "reasoning" ? "response.reasoning_text" : "response.output_text";
      take("response.content_part.added");
      text = take_deltas(part + ".delta", index, id);
      EXPECT_EQ(text_of(data(), "text"), text);
      take(part + ".done");
      take("response.content_part.done");
      EXPECT_EQ(text_of(data().at("item").value().at("content").value().element(0), "text"), text);
    }
    EXPECT_EQ(text_of(data().at("item").value(), "id"), id);
    items_ += (items_.empty() ? "" : ",") + json_text(data().at("item").value());
    take("response.output_item.done");
  }

  std::vector<SseEvent> events_;
  size_t at_ = 0;
  std::string items_;
};

std::string without_time(std::string response) {
  const size_t created = response.find("\"created_at\":");
  return response.erase(created, response.find(',', created) - created);
}

class ResponsesStream : public test::ApiAnswers, public testing::WithParamInterface<SaidCase> {};

TEST_P(ResponsesStream, SaysWhatTheWholeAnswerSays) {
  const std::string expected = test::without_ids(without_time(whole(kResponsesApi, kBody, GetParam())));
  const auto streamed = [&](const std::function<size_t()>& piece) {
    return test::without_ids(without_time(Reader(stream(kResponsesApi, kBody, GetParam(), piece)).read()));
  };
  for (const size_t size : {1, 2, 3, 5, 11, 64, 1000})
    EXPECT_EQ(streamed([size] { return size; }), expected) << size << " events in a write";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    EXPECT_EQ(streamed([&random] { return 1 + random() % 24; }), expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Responses, ResponsesStream, testing::ValuesIn(test::said_cases()),
                         [](const auto& info) { return info.param.name; });

using ResponsesAnswers = test::ApiAnswers;

TEST_F(ResponsesAnswers, ThoughtsTextAndCallsAreItems) {
  const std::string json =
      whole(kResponsesApi, kBody,
            {"", "<mm:think>so</mm:think>the fox " + test::call_block(test::invoke("f", "3"))});
  EXPECT_THAT(json, HasSubstr(R"("object":"response")"));
  EXPECT_THAT(json, HasSubstr(R"("status":"completed","error":null,"incomplete_details":null)"));
  EXPECT_THAT(
      json,
      HasSubstr(R"("type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"so"}])"));
  EXPECT_THAT(json, HasSubstr(R"("content":[{"type":"output_text","text":"the fox ","annotations":[])"));
  EXPECT_THAT(json, HasSubstr(R"("name":"f","arguments":"{\"n\":\"3\",\"m\":\"3x\"}","status":"completed")"));
  EXPECT_THAT(json, HasSubstr(R"("input_tokens_details":{"cached_tokens":3)"));
  EXPECT_THAT(json, HasSubstr(R"("tools":[{"type":"function","name":"f"},)"));
}

TEST_F(ResponsesAnswers, ToolsAreCalledAsTheirClientKnowsThem) {
  const std::string body =
      R"("input":"hi","tools":[{"type":"custom","name":"c"},{"type":"namespace","name":"s","tools":[)"
      R"({"type":"function","name":"g"},{"type":"custom","name":"d"}]}])";
  const std::string ns = "]<]minimax[>[";
  const auto custom = [&ns](const char* name) {
    return strf("{0}<invoke name=\"{1}\">{0}<input>the \"fox\"\n{0}</input>{0}</invoke>\n", ns, name);
  };
  const SaidCase said{"", test::call_block(custom("c") + test::invoke("s__g", "3") + custom("s__d"))};
  const std::string json = whole(kResponsesApi, body, said);
  EXPECT_THAT(json, HasSubstr(R"("name":"c","input":"the \"fox\"\n","status":"completed")"));
  EXPECT_THAT(json, HasSubstr(R"("name":"g","namespace":"s","arguments":"{\"n\":\"3\",\"m\":\"3x\"}")"));
  EXPECT_THAT(json, HasSubstr(R"("name":"d","namespace":"s","input":"the \"fox\"\n")"));
  for (const size_t size : {1, 3, 11, 1000}) {
    const std::string streamed = Reader(stream(kResponsesApi, body, said, [size] { return size; })).read();
    EXPECT_EQ(test::without_ids(without_time(streamed)), test::without_ids(without_time(json)));
  }
}

TEST_F(ResponsesAnswers, NoRoomForMoreIsIncomplete) {
  const std::string json = whole(kResponsesApi, kBody + R"(,"max_output_tokens":9)",
                                 {"", "<mm:think>so</mm:think>the fox", FinishReason::kLength});
  EXPECT_THAT(
      json,
      HasSubstr(R"("status":"incomplete","error":null,"incomplete_details":{"reason":"max_output_tokens"})"));
  EXPECT_THAT(json, HasSubstr(R"("encrypted_content":null,"status":"completed")"));
  EXPECT_THAT(json, HasSubstr(R"("max_output_tokens":9)"));
}

// A thought goes back in as it came out, also where a client keeps nothing of it but the packed one.
TEST_F(ResponsesAnswers, APackedThoughtComesBack) {
  const std::string json = whole(kResponsesApi, kBody + R"(,"include":["reasoning.encrypted_content"])",
                                 {"", "<mm:think>so \xf0\x9f\x90\xa6</mm:think>fox"});
  const size_t begin = json.find("\"encrypted_content\":\"") + 21;
  const std::string packed = json.substr(begin, json.find('"', begin) - begin);
  const std::string prompt_text =
      prompt(kResponsesApi,
             strf(R"("input":[{{"role":"user","content":"a"}},{{"type":"reasoning","id":"rs_1","summary":[],)"
                  R"("encrypted_content":"{}"}},{{"type":"message","role":"assistant","content":"b"}}, )"
                  R"({{"type":"function_call","call_id":"c","name":"f","arguments":"{{}}"}},)"
                  R"({{"type":"function_call_output","call_id":"c","output":"d"}}])",
                  packed));
  EXPECT_THAT(prompt_text, HasSubstr("so \xf0\x9f\x90\xa6"));
}

TEST_F(ResponsesAnswers, AFailureEndsTheStreamInItsOwnWords) {
  openai::Generation answer = generation(kResponsesApi, "{" + kBody + R"(,"stream":true})");
  std::string out;
  answer.append_keep_alive(out);
  answer.append_failure(out, {.status = 500, .message = "it broke"});
  const std::vector<SseEvent> events = test::read_events(out);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[2].type, "response.failed");
  const Json response = events[2].data.root().at("response").value();
  EXPECT_EQ(text_of(response, "status"), "failed");
  EXPECT_EQ(text_of(response.at("error").value(), "message"), "it broke");
}

}  // namespace
}  // namespace sparrow::responses
