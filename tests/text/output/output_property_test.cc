// SPDX-License-Identifier: Apache-2.0
// Random answers, written in the model's format by a renderer of our own, parse back to exactly what was
// rendered.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/json/json_writer.h"
#include "support/output_cases.h"
#include "text/chat_template.h"
#include "text/synthetic/synthetic_template.h"

namespace sparrow {
namespace {

class AnswerWriter {
 public:
  explicit AnswerWriter(unsigned seed) : random_(seed) {}

  void write() {
    starts_in_reasoning = chance(3);
    if (starts_in_reasoning || chance(2)) {
      if (!starts_in_reasoning) text += kThinkOpen;
      expected.reasoning = plain_text(12);
      text += expected.reasoning;
      text += kThinkClose;
      content(plain_text(8));
    } else {
      content("x" + plain_text(8));  // blank text or a closing tag at the very start has rules of its own
    }
    const int num_blocks = chance(5) ? 2 : chance(4) ? 0 : 1;
    for (int i = 0; i < num_blocks; ++i) {
      if (i > 0) content(chance(2) ? "\n" : "y" + plain_text(4));
      block();
    }
    if (num_blocks > 0 && chance(3)) content(chance(2) ? " \n" : plain_text(4) + "z");
    tools_json = "[" + tools_json + "]";
  }

  // As a chat template renders one message of the assistant: the block comes last, and an answer without
  // reasoning begins with the closing tag.
  void write_message() {
    if (!chance(3)) expected.reasoning = plain_text(12);
    text = expected.reasoning.empty() ? "" : std::string(kThinkOpen) + expected.reasoning;
    text += kThinkClose;
    content(plain_text(8));
    if (!chance(4)) block();
    tools_json = "[" + tools_json + "]";
  }

  std::string text, tools_json;
  ParsedOutput expected;
  bool starts_in_reasoning = false;

 private:
  size_t below(size_t n) { return random_() % n; }
  bool chance(size_t one_in) { return below(one_in) == 0; }

  // Full of what almost is a marker.
  std::string plain_text(size_t max_pieces) {
    static const std::vector<std::string> kPieces = {
        "word ",      "]",           "<",         "]<]",   "]<]minimax[>",
        "[",          ">",           "</",        "<mm:",  "think>",
        "tool_call>", "\n",          " ",         "größe", "🐦",
        "\"",         "\\",          "{\"a\":1}", "null",  "<invoke name=\"x\">",
        "</item>",    "]<]minimax[", "\t",        "1"};
    while (true) {
      std::string out;
      for (size_t i = below(max_pieces + 1); i > 0; --i) out += kPieces[below(kPieces.size())];
      const auto holds = [&out](std::string_view marker) { return out.find(marker) != out.npos; };
      if (!holds(kToolMarker) && !holds(kThinkOpen) && !holds(kThinkClose)) return out;
    }
  }

  void content(const std::string& piece) {
    text += piece;
    const bool after_block = !expected.tool_calls.empty();
    if (!after_block || !is_blank(piece)) expected.content += piece;
  }

  void tag(const std::string& inside) { text.append(kToolMarker).append("<").append(inside).append(">"); }

  void block() {
    tag("tool_call");
    text += "\n";
    for (size_t i = 1 + below(3); i > 0; --i) {
      const std::string name = "tool_" + std::to_string(expected.tool_calls.size());
      tag("invoke name=\"" + name + "\"");
      std::string schema, json;
      members(0, schema, json);
      tag("/invoke");
      text += "\n";
      expected.tool_calls.push_back({name, json});
      if (!tools_json.empty()) tools_json += ",";
      tools_json +=
          R"({"type":"function","function":{"name":")" + name + R"(","parameters":)" + schema + "}}";
    }
    tag("/tool_call");
  }

  // Writes the value between the tags of its element into text, its schema and its JSON into the other two.
  void value(int depth, std::string& schema, std::string& json) {
    switch (below(depth < 3 ? 10 : 7)) {
      case 0:
      case 1:
      case 2: {
        const std::string string = plain_text(6);
        text += string;
        append_json_string(json, string);
        schema = R"({"type":"string"})";
        return;
      }
      case 3:
        return leaf(std::to_string(static_cast<int64_t>(random_()) * (chance(2) ? 1 : -2000000000)),
                    "integer", schema, json);
      case 4: {
        std::string number;
        append_json_number(number,
                           std::ldexp(static_cast<double>(random_()), static_cast<int>(below(200)) - 100));
        return leaf(number, "number", schema, json);
      }
      case 5:
        return leaf(chance(2) ? "true" : "false", "boolean", schema, json);
      case 6: {
        const std::string string = "u" + plain_text(3);  // nothing is known of it
        text += string;
        append_json_string(json, string);
        schema = "{}";
        return;
      }
      case 7:
        return items(depth, schema, json);
      default:
        return members(depth, schema, json);
    }
  }

  void leaf(const std::string& written, const char* type, std::string& schema, std::string& json) {
    text += written;
    json += written;
    schema = std::string(R"({"type":")") + type + "\"}";
  }

  // All elements have one type: a number, or null, which is written as an empty item.
  void items(int depth, std::string& schema, std::string& json) {
    json += "[";
    if (chance(2)) {
      schema = R"({"type":"array","items":{"type":["integer","null"]}})";
      for (size_t i = 0, n = below(4); i < n; ++i) {
        const std::string number = chance(3) ? "" : std::to_string(below(100));
        tag("item");
        text += number;
        tag("/item");
        json += (i > 0 ? "," : "") + (number.empty() ? "null" : number);
      }
    } else {
      tag("item");
      std::string item_schema;
      members(depth + 1, item_schema, json);
      tag("/item");
      schema = R"({"type":"array","items":)" + item_schema + "}";
    }
    json += "]";
  }

  void members(int depth, std::string& schema, std::string& json) {
    std::string properties;
    json += "{";
    bool first = true;
    for (size_t i = 0, n = below(4); i < n; ++i) {
      const std::string key =
          std::vector<std::string>{"key ", "invoke", "größe", "item"}[i] + (chance(2) ? "" : "]x");
      std::string member_schema = R"({"type":["string","null"]})";
      if (!chance(6)) {  // else it is null: not written at all
        json += (first ? "" : ",");
        first = false;
        const std::string name(key.substr(0, key.find_last_not_of(' ') + 1));
        append_json_string(json, name);
        json += ":";
        tag(name);
        value(depth + 1, member_schema, json);
        tag("/" + name);
        properties += (properties.empty() ? "" : ",") + json_quoted(name) + ":" + member_schema;
      }
    }
    json += "}";
    schema = R"({"type":"object","properties":{)" + properties + "}}";
  }

  std::mt19937 random_;
};

TEST(OutputProperty, WhatWasRenderedIsParsedBack) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    AnswerWriter answer(seed);
    answer.write();
    const auto document = JsonDocument::parse(answer.tools_json, "tools");
    ASSERT_TRUE(document.ok()) << document.error().message;
    const auto tools = ToolSet::from_json(document->root());
    ASSERT_TRUE(tools.ok()) << tools.error().message;
    const OutputParserOptions options{.starts_in_reasoning = answer.starts_in_reasoning,
                                      .tools = &tools.value()};
    const auto all = chunkings(answer.text);
    for (const unsigned index : {0u, 1u, 2u, 3 + seed % 50, 3 + (seed + 7) % 50}) {
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", chunking " << index << ", text " << answer.text);
      const ParsedOutput result = parse_chunks(options, all[index]);
      ASSERT_EQ(result.reasoning, answer.expected.reasoning);
      ASSERT_EQ(result.content, answer.expected.content);
      ASSERT_EQ(result.tool_calls.size(), answer.expected.tool_calls.size());
      for (size_t i = 0; i < result.tool_calls.size(); ++i) {
        ASSERT_EQ(result.tool_calls[i].name, answer.expected.tool_calls[i].name);
        ASSERT_EQ(result.tool_calls[i].arguments, answer.expected.tool_calls[i].arguments);
      }
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
}

std::string message_json(const ParsedOutput& answer) {
  JsonWriter out;
  out.begin_object().key("role").string("assistant").key("reasoning_content").string(answer.reasoning);
  out.key("content").string(answer.content);
  if (!answer.tool_calls.empty()) {
    out.key("tool_calls").begin_array();
    for (const ParsedToolCall& call : answer.tool_calls) {
      out.begin_object().key("id").string("x").key("type").string("function").key("function").begin_object();
      out.key("name").string(call.name).key("arguments").string(call.arguments).end_object().end_object();
    }
    out.end_array();
  }
  return out.end_object().take();
}

TEST(OutputProperty, WhatTheChatTemplateRendersIsParsedBack) {
  const auto chat_template = ChatTemplate::parse(synthetic_chat_template());
  ASSERT_TRUE(chat_template.ok()) << chat_template.error().message;
  const std::string start = "]~b]ai\n", end = "[e~[";
  for (unsigned seed = 0; seed < 500; ++seed) {
    AnswerWriter answer(seed);
    answer.write_message();
    const auto messages = JsonDocument::parse(
        R"([{"role":"user","content":"Hi"},)" + message_json(answer.expected) + "]", "messages");
    ASSERT_TRUE(messages.ok()) << messages.error().message;
    const auto prompt = chat_template->render({.messages = messages->root(), .add_generation_prompt = false});
    ASSERT_TRUE(prompt.ok()) << prompt.error().message;
    const std::string& whole = prompt->text;
    const size_t begin = whole.rfind(start) + start.size();
    const std::string rendered = whole.substr(begin, whole.rfind(end) - begin);
    ASSERT_EQ(rendered, answer.text) << "seed " << seed;

    const auto document = JsonDocument::parse(answer.tools_json, "tools");
    const auto tools = ToolSet::from_json(document->root());
    const auto all = chunkings(rendered);
    for (const unsigned index : {0u, 2u, 3 + seed % 50})
      ASSERT_EQ(parse_chunks({.tools = &tools.value()}, all[index]), answer.expected) << rendered;
  }
}

// Cut anywhere, an answer loses nothing that was certain: what streams is always a beginning of the whole.
TEST(OutputProperty, EveryBeginningStreamsABeginning) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    AnswerWriter answer(seed);
    answer.write();
    const auto document = JsonDocument::parse(answer.tools_json, "tools");
    const auto tools = ToolSet::from_json(document->root());
    OutputParser parser({.starts_in_reasoning = answer.starts_in_reasoning, .tools = &tools.value()});
    ParsedOutput so_far;
    for (const char byte : answer.text) {
      std::vector<OutputDelta> deltas;
      parser.feed({&byte, 1}, deltas);
      for (const OutputDelta& delta : deltas) so_far.add(delta);
      ASSERT_TRUE(answer.expected.reasoning.starts_with(so_far.reasoning)) << answer.text;
      ASSERT_TRUE(answer.expected.content.starts_with(so_far.content)) << answer.text;
      for (size_t i = 0; i < so_far.tool_calls.size(); ++i)
        ASSERT_TRUE(answer.expected.tool_calls[i].arguments.starts_with(so_far.tool_calls[i].arguments))
            << answer.text;
    }
  }
}

// Over at any byte: a call that breaks off has a beginning of its arguments, and never one that is whole.
TEST(OutputProperty, EveryEndLeavesABeginningOfTheArguments) {
  for (unsigned seed = 0; seed < 25; ++seed) {
    AnswerWriter answer(seed);
    answer.write();
    const auto document = JsonDocument::parse(answer.tools_json, "tools");
    const auto tools = ToolSet::from_json(document->root());
    for (size_t end = 0; end < answer.text.size(); ++end) {
      OutputParser parser({.starts_in_reasoning = answer.starts_in_reasoning, .tools = &tools.value()});
      std::vector<OutputDelta> deltas;
      parser.feed(std::string_view(answer.text).substr(0, end), deltas);
      parser.finish(deltas);
      ParsedOutput result;
      for (const OutputDelta& delta : deltas) result.add(delta);
      for (size_t i = 0; i < result.tool_calls.size(); ++i) {
        const std::string& whole = answer.expected.tool_calls[i].arguments;
        const std::string& arguments = result.tool_calls[i].arguments;
        const bool complete = static_cast<int>(i) < parser.num_complete_calls();
        ASSERT_TRUE(complete ? arguments == whole : whole.starts_with(arguments) && arguments != whole)
            << answer.text.substr(0, end);
      }
    }
  }
}

// Every text of up to three of these pieces: what decides a value or breaks it off, and what makes the parser
// wait before it knows.
std::vector<std::string> short_values() {
  const std::vector<std::string> pieces = {
      "",          "nul", "l", "\n", "1", "x", "]", "@", "\xC3", "@<b>", "@</b>", "@</q>", "@<invoke name=g>",
      "@</invoke>"};
  std::vector<std::string> out;
  for (const std::string& first : pieces)
    for (const std::string& second : pieces)
      for (const std::string& third : pieces) out.push_back(first + second + third);
  return out;
}

// A tool whose parameter p has this type.
class OneParameter {
 public:
  explicit OneParameter(const std::string& type)
      : document_(
            JsonDocument::parse(R"([{"name":"f","parameters":{"properties":{"p":)" + type + "}}}]", "tools")
                .value()),
        tools_(ToolSet::from_json(document_.root()).value()) {}

  ParsedOutput parse(const std::vector<std::string>& chunks) const {
    return parse_chunks({.tools = &tools_}, chunks);
  }

 private:
  JsonDocument document_;
  ToolSet tools_;
};

TEST(OutputProperty, EveryShortValueIsTheSameWholeAndByteByByte) {
  for (const char* type :
       {"{}", R"({"type":"string"})", R"({"type":["string","null"]})", R"({"enum":["nul\n",null]})",
        R"({"type":["integer","null"]})", R"({"type":"boolean"})", R"({"type":["integer","string","null"]})",
        R"({"type":"object","properties":{"b":{"type":["string","null"]}}})",
        R"({"type":["array","null"],"items":{"type":["string","null"]}})"}) {
    const OneParameter tool(type);
    for (const std::string& value : short_values())
      for (const char* end : {"", "@</p>@</invoke>"}) {
        const std::string text = with_markers("@<tool_call>@<invoke name=f>@<p>" + value + end);
        std::vector<std::string> bytes;
        for (const char byte : text) bytes.emplace_back(1, byte);
        ASSERT_EQ(tool.parse(bytes), tool.parse({text})) << type << " " << text;
      }
  }
}

TEST(OutputProperty, EveryShortValueThatIsNotNullReadsTheSameWhereNullIsAllowed) {
  const OneParameter string(R"({"type":"string"})"), nullable(R"({"type":["string","null"]})");
  for (const std::string& value : short_values()) {
    const std::string text = with_markers("@<tool_call>@<invoke name=f>@<p>" + value + "@</p>@</invoke>");
    const ParsedOutput expected = string.parse({text});
    // One that breaks off may still wait for null.
    if (value == "null" || !expected.content.empty()) continue;
    ASSERT_EQ(nullable.parse({text}), expected) << text;
  }
}

}  // namespace
}  // namespace sparrow
