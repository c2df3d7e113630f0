// SPDX-License-Identifier: Apache-2.0
// Every value of a request in turn becomes one of another kind: a list an object with the same elements, an
// object a list, a text a number. Whoever reads it takes it or refuses it; nobody takes its kind for granted.
#include <gtest/gtest.h>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "server/anthropic/messages.h"
#include "server/media/media_parts.h"
#include "server/responses/responses.h"
#include "support/server/api_answers.h"

namespace sparrow {
namespace {

constexpr std::string_view kOtherKind = "";  // with the elements that are there
constexpr std::string_view kInstead[] = {kOtherKind,     "3",    "\"x\"", "true", R"({"a":1})", R"([])",
                                         R"([{"a":1}])", "[[]]", "{}"};

// Writes a document again, and value number `at` as something else.
class OtherValue {
 public:
  OtherValue(size_t at, std::string_view instead) : at_(at), instead_(instead) {}

  std::string text(const Json& root) {
    JsonWriter out;
    write(root, out);
    return out.take();
  }
  size_t count() const { return next_; }

 private:
  void write(const Json& value, JsonWriter& out) {
    const bool is_it = next_++ == at_;
    if (is_it && instead_ != kOtherKind) {
      out.raw(instead_);
    } else if (!value.is_array() && !value.is_object()) {
      write_json(value, out);
    } else if (value.is_array() != is_it) {
      out.begin_array();
      for (size_t i = 0; i < value.size(); ++i) write(inner(value, i), out);
      out.end_array();
    } else {
      out.begin_object();
      for (size_t i = 0; i < value.size(); ++i) {
        out.key(value.is_object() ? std::string(value.key(i)) : std::to_string(i));
        write(inner(value, i), out);
      }
      out.end_object();
    }
  }
  static Json inner(const Json& value, size_t i) {
    return value.is_array() ? value.element(i) : value.member(i);
  }

  size_t at_, next_ = 0;
  std::string_view instead_;
};

std::vector<std::string> wrong_kinds(std::string_view text) {
  const JsonDocument document = JsonDocument::parse(text, "text").value();
  OtherValue same(SIZE_MAX, kOtherKind);
  EXPECT_EQ(same.text(document.root()).size(), text.size());
  std::vector<std::string> out;
  for (size_t at = 0; at < same.count(); ++at)
    for (const std::string_view instead : kInstead)
      out.push_back(OtherValue(at, instead).text(document.root()));
  return out;
}

constexpr std::string_view kSchema =
    R"({"type":"object","properties":{"a":{"type":["string","null"],"enum":["x",null]},"b":{"$ref":"#/$defs/b"},)"
    R"("c":{"type":"array","prefixItems":[{"type":"integer","minimum":0}],"items":{"type":"number"},"minItems":1}},)"
    R"("patternProperties":{"^x":{"const":{"k":1},"required":["k"]}},"required":["a"],"additionalProperties":false,)"
    R"("$defs":{"b":{"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},)"
    R"({"type":"object","properties":{"k":{"const":2}},"required":["k"]}],"allOf":[{"type":"object"}]}},)"
    R"("anyOf":[{"required":["a"]},{"minProperties":1}]})";

class WrongKinds : public test::ApiAnswers {
 protected:
  // The request itself is taken, and most of the others are not.
  void check(const openai::Api& api, const std::string& body) {
    const auto made = openai::prepare(api, body, model_);
    EXPECT_TRUE(made.ok()) << made.error().message;
    size_t refused = 0;
    const std::vector<std::string> bodies = wrong_kinds(body);
    for (const std::string& other : bodies) {
      const auto prepared = openai::prepare(api, other, model_);
      if (prepared.ok()) continue;
      ++refused;
      EXPECT_FALSE(prepared.error().message.empty()) << other;
    }
    EXPECT_GT(refused, bodies.size() / 2);
  }
};

TEST_F(WrongKinds, OfChats) {
  check(
      openai::kChatApi,
      strf(
          R"({{"messages":[{{"role":"system","content":[{{"type":"text","text":"s"}}]}},)"
          R"({{"role":"assistant","content":[{{"type":"text","text":"y"}}],"reasoning_details":[{{"text":"r"}}],)"
          R"("tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{{}}"}}}}]}},)"
          R"({{"role":"tool","tool_call_id":"c","content":[{{"type":"text","text":"t"}}]}},)"
          R"({{"role":"user","content":"x"}}],"tools":[{{"type":"function","function":{{"name":"f",)"
          R"("strict":true,"parameters":{}}}}}],"tool_choice":{{"type":"allowed_tools","allowed_tools":)"
          R"({{"mode":"auto","tools":[{{"type":"function","function":{{"name":"f"}}}}]}}}},"max_tokens":9,)"
          R"("stop":["a","b"],"logit_bias":{{"5":1}},"stop_token_ids":[3],)"
          R"("bad_words":["q"],"modalities":["text"],"chat_template_kwargs":{{"x":[1]}},)"
          R"("stream":true,"stream_options":{{"include_usage":true}},"metadata":{{"a":"b"}}}})",
          kSchema));
}

TEST_F(WrongKinds, OfSchemas) {
  check(openai::kChatApi, strf(R"({{"messages":[{{"role":"user","content":"x"}}],"response_format":{{"type":)"
                               R"("json_schema","json_schema":{{"name":"n","schema":{}}}}}}})",
                               kSchema));
}

TEST_F(WrongKinds, OfResponses) {
  check(
      responses::kResponsesApi,
      R"({"instructions":"i","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"x"}]},)"
      R"({"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"content":[{"type":"reasoning_text",)"
      R"("text":"z"}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"t"}]}],)"
      R"("tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":false},)"
      R"({"type":"custom","name":"g","format":{"type":"grammar","syntax":"regex","definition":"a"}},)"
      R"({"type":"namespace","name":"n","tools":[{"type":"function","name":"h","parameters":{}}]}],)"
      R"("tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]},)"
      R"("include":["reasoning.encrypted_content"],"text":{"format":{"type":"text"}},"reasoning":{"effort":"low"},)"
      R"("metadata":{"a":"b"},"max_output_tokens":9})");
}

TEST_F(WrongKinds, OfMessages) {
  check(
      anthropic::kMessagesApi,
      R"({"max_tokens":2000,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],)"
      R"("messages":[{"role":"user","content":[{"type":"text","text":"t"}]},{"role":"assistant","content":[)"
      R"({"type":"thinking","thinking":"x","signature":"s"},{"type":"tool_use","id":"t","name":"f","input":{"a":1}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":[)"
      R"({"type":"text","text":"r"},{"type":"tool_reference","tool_name":"f"}]},{"type":"text","text":"z"}]}],)"
      R"("tools":[{"name":"f","description":"d","defer_loading":true,"input_schema":{"type":"object"}}],)"
      R"("tool_choice":{"type":"auto","disable_parallel_tool_use":true},"stop_sequences":["q"],)"
      R"("thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":"u"},)"
      R"("context_management":{"edits":[{"type":"clear_thinking_20251015"}]},"output_config":{"effort":"low"}})");
}

TEST_F(WrongKinds, OfCompletions) {
  check(openai::kCompletionApi, R"({"prompt":["x","y"],"max_tokens":1,"stop":["z"],"logit_bias":{"5":1}})");
  check(openai::kCompletionApi, R"({"prompt":[[1,2],[3]],"structured_outputs":{"choice":["a","b"]}})");
  check(openai::kTokenizeApi, R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true})");
}

TEST(WrongKindsOfMedia, AreRefused) {
  constexpr std::string_view kText =
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u",)"
      R"("detail":"low"},"min_pixels":3136},{"type":"video","video":["a","b","c"],"fps":2,"frames_indices":[0,1,5],)"
      R"("total_num_frames":6}]}],"kwargs":{"max_pixels":6272,"fps":1}})";
  const MediaSettings settings;
  size_t refused = 0;
  for (const std::string& text : wrong_kinds(kText)) {
    const JsonDocument document = JsonDocument::parse(text, "text").value();
    const auto messages = document.root().find("messages"), kwargs = document.root().find("kwargs");
    // What comes before has looked at these.
    const bool is_list = messages && messages->is_array();
    if (!is_list || (kwargs && !kwargs->is_object())) continue;
    refused += !read_media_parts(*messages, kwargs, &settings, "").ok();
  }
  EXPECT_GT(refused, 60u);
}

}  // namespace
}  // namespace sparrow
