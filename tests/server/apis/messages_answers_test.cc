// SPDX-License-Identifier: Apache-2.0
// Messages: streams have every event in its place and say what the whole answer says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "server/anthropic/messages.h"
#include "server/api/chat_body.h"
#include "support/server/api_answers.h"

namespace sparrow::anthropic {
namespace {

using test::SaidCase;
using test::SseEvent;
using test::text_of;
using testing::HasSubstr;

const std::string kBody =
    R"("max_tokens":400,"thinking":{"type":"adaptive"},"messages":[{"role":"user","content":"hi"}],)"
    R"("tools":[{"name":"f","input_schema":{"type":"object"}},{"name":"g","input_schema":{"type":"object"}}])";

// What an answer says, from either form of it.
struct Said {
  std::vector<std::string> blocks;  // "text: ...", "thinking: ... (signature)", "tool_use: id name input"
  std::string stop_reason, stop_sequence, usage;
  bool operator==(const Said&) const = default;
  friend void PrintTo(const Said& it, std::ostream* out) {
    for (const std::string& block : it.blocks) *out << block << "\n";
    *out << it.stop_reason << " " << it.stop_sequence << " " << it.usage;
  }
};

// The input of a call as its text: that of a cut-off one is kept under a name of its own.
std::string input_text(const Json& input) {
  const std::string cut = text_of(input, kInvalidJson);
  return cut.empty() ? json_text(input) : cut;
}

Said read_whole(const std::string& body) {
  const JsonDocument document = JsonDocument::parse(body, "answer").value();
  const Json root = document.root();
  Said said{.blocks = {},
            .stop_reason = text_of(root, "stop_reason"),
            .stop_sequence = text_of(root, "stop_sequence"),
            .usage = json_text(root.at("usage").value())};
  const Json content = root.at("content").value();
  for (size_t i = 0; i < content.size(); ++i) {
    const Json block = content.element(i);
    const std::string kind = text_of(block, "type");
    if (kind == "tool_use") {
      said.blocks.push_back("tool_use: " + text_of(block, "id") + " " + text_of(block, "name") + " " +
                            input_text(block.at("input").value()));
    } else if (kind == "thinking") {
      said.blocks.push_back("thinking: " + text_of(block, "thinking") + " (" + text_of(block, "signature") +
                            ")");
    } else {
      said.blocks.push_back("text: " + text_of(block, "text"));
    }
  }
  return said;
}

class Reader {
 public:
  explicit Reader(std::string_view stream) : events_(test::read_events(stream)) {}

  Said read() {
    Said said;
    EXPECT_EQ(type(), "message_start");
    EXPECT_EQ(data().at("message").value().at("content").value().size(), 0u);
    ++at_;
    for (int index = 0; type() == "content_block_start"; ++index) said.blocks.push_back(read_block(index));
    EXPECT_EQ(type(), "message_delta");
    const Json delta = data().at("delta").value();
    said.stop_reason = text_of(delta, "stop_reason");
    said.stop_sequence = text_of(delta, "stop_sequence");
    said.usage = json_text(data().at("usage").value());
    ++at_;
    EXPECT_EQ(type(), "message_stop");
    EXPECT_EQ(++at_, events_.size());
    return said;
  }

 private:
  std::string type() const { return at_ < events_.size() ? events_[at_].type : "the end"; }
  Json data() const { return events_[at_].data.root(); }

  std::string read_block(int index) {
    const auto has_index = [&] { return data().int_or("index", -1, -1, 100).value() == index; };
    EXPECT_TRUE(has_index());
    const Json block = data().at("content_block").value();
    const std::string kind = text_of(block, "type");
    std::string text, signature;
    for (++at_; type() == "content_block_delta"; ++at_) {
      EXPECT_TRUE(has_index());
      const Json delta = data().at("delta").value();
      EXPECT_EQ(signature, "") << "it comes last";
      const std::string delta_kind = text_of(delta, "type");
      if (delta_kind == "signature_delta") signature = text_of(delta, "signature");
      const std::string expected = kind == "text"       ? "text_delta"
                                   : kind == "tool_use" ? "input_json_delta"
                                                        : "thinking_delta";
      EXPECT_TRUE(delta_kind == expected || delta_kind == "signature_delta") << delta_kind;
      text += text_of(delta, kind == "text" ? "text" : kind == "tool_use" ? "partial_json" : "thinking");
    }
    EXPECT_EQ(type(), "content_block_stop");
    EXPECT_TRUE(has_index());
    ++at_;
    if (kind == "text") return "text: " + text;
    if (kind == "thinking") return "thinking: " + text + " (" + signature + ")";
    return "tool_use: " + text_of(block, "id") + " " + text_of(block, "name") + " " + text;
  }

  std::vector<SseEvent> events_;
  size_t at_ = 0;
};

class MessagesStream : public test::ApiAnswers, public testing::WithParamInterface<SaidCase> {};

TEST_P(MessagesStream, SaysWhatTheWholeAnswerSays) {
  const Said expected = read_whole(test::without_ids(whole(kMessagesApi, kBody, GetParam())));
  const auto streamed = [&](const std::function<size_t()>& piece) {
    return Reader(test::without_ids(stream(kMessagesApi, kBody, GetParam(), piece))).read();
  };
  for (const size_t size : {1, 2, 3, 5, 11, 64, 1000})
    EXPECT_EQ(streamed([size] { return size; }), expected) << size << " events in a write";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    EXPECT_EQ(streamed([&random] { return 1 + random() % 24; }), expected) << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Messages, MessagesStream, testing::ValuesIn(test::said_cases()),
                         [](const auto& info) { return info.param.name; });

using MessagesAnswers = test::ApiAnswers;

TEST_F(MessagesAnswers, ThoughtsTextAndCallsAreBlocks) {
  const std::string json =
      whole(kMessagesApi, kBody,
            {"", "<mm:think>so</mm:think>the fox " + test::call_block(test::invoke("f", "3"))});
  EXPECT_THAT(json, HasSubstr(R"("type":"message","role":"assistant","model":"m3","content":[)"));
  EXPECT_THAT(json, HasSubstr(R"({"type":"thinking","thinking":"so","signature":")"));
  EXPECT_THAT(json, HasSubstr(R"({"type":"text","text":"the fox "})"));
  EXPECT_THAT(json, HasSubstr(R"("name":"f","input":{"n":"3","m":"3x"}})"));
  EXPECT_THAT(json, HasSubstr(R"("stop_reason":"tool_use","stop_sequence":null)"));
  EXPECT_THAT(json, HasSubstr(R"("cache_read_input_tokens":3)"));
}

TEST_F(MessagesAnswers, StopReasons) {
  const auto reason = [&](const std::string& text, FinishReason finish, const std::string& more = "") {
    const Said said = read_whole(whole(kMessagesApi, kBody + more, {"", text, finish}));
    return said.stop_reason + "/" + said.stop_sequence;
  };
  EXPECT_EQ(reason("the fox", FinishReason::kStop), "end_turn/");
  EXPECT_EQ(reason("the fox", FinishReason::kLength), "max_tokens/");
  EXPECT_EQ(reason("the quick fox", FinishReason::kLength, R"(,"stop_sequences":["quick"])"),
            "stop_sequence/quick");
  EXPECT_EQ(reason(test::call_block(test::invoke("f", "3")), FinishReason::kStop), "tool_use/");
}

// Half a command must not look like a whole one, and comes back as what it was.
TEST_F(MessagesAnswers, ACallThatIsCutOffIsNotMadeWhole) {
  const std::string json =
      whole(kMessagesApi, kBody,
            {"", test::call_block(test::invoke("f", "3")).substr(0, 75), FinishReason::kLength});
  EXPECT_THAT(json, HasSubstr(R"("name":"f","input":{"INVALID_JSON":"{)")) << json;
}

TEST_F(MessagesAnswers, SignsOfLifeAndFailuresHaveEventsOfTheirOwn) {
  openai::Generation answer = generation(kMessagesApi, "{" + kBody + R"(,"stream":true})");
  std::string out;
  answer.append_keep_alive(out);
  answer.append_keep_alive(out);
  answer.append_failure(out, {.status = 503, .message = "it broke"});
  const std::vector<SseEvent> events = test::read_events(out);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].type, "message_start");
  EXPECT_EQ(events[1].type, "ping");
  EXPECT_EQ(events[2].type, "ping");
  EXPECT_EQ(events[3].type, "error");
  EXPECT_EQ(text_of(events[3].data.root().at("error").value(), "type"), "overloaded_error");
}

// The draws of a thought whose budget is spent have one way to go.
TEST_F(MessagesAnswers, ABudgetEndsTheThought) {
  const auto prepared = openai::prepare(
      kMessagesApi,
      R"({"max_tokens":400,"thinking":{"type":"enabled","budget_tokens":3},"messages":[{"role":"user","content":"x"}]})",
      model_);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  ASSERT_TRUE(prepared.value()->request.constraint);
  const auto constraint = prepared.value()->request.constraint->copy();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(constraint->next_ids().allowed.empty());
    constraint->advance(5);
  }
  const auto other = constraint->copy();
  const int32_t close = *tokenizer_.id_of("</mm:think>");
  EXPECT_THAT(constraint->next_ids().allowed, testing::ElementsAre(close));
  constraint->advance(close);
  EXPECT_TRUE(constraint->next_ids().allowed.empty());
  EXPECT_THAT(other->next_ids().allowed, testing::ElementsAre(close)) << "a copy is a state of its own";
}

}  // namespace
}  // namespace sparrow::anthropic
