// SPDX-License-Identifier: Apache-2.0
#include "support/output_cases.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace sparrow {
namespace {

constexpr int kRandomChunkings = 50;

std::vector<std::string> per_character(const std::string& text) {
  std::vector<std::string> chunks;
  for (size_t i = 0; i < text.size(); i += chunks.back().size())
    chunks.push_back(text.substr(i, decode_utf8(std::string_view(text).substr(i)).length));
  return chunks;
}

void check_delta(const OutputDelta& delta, const ParsedOutput& before) {
  EXPECT_EQ(valid_utf8_prefix(delta.text), delta.text.size());
  if (delta.kind != OutputDelta::Kind::kToolCall) {
    EXPECT_FALSE(delta.text.empty());
    EXPECT_EQ(delta.call, -1);
    EXPECT_EQ(delta.name, "");
    return;
  }
  const auto call = static_cast<size_t>(delta.call);
  if (delta.name.empty()) {
    EXPECT_FALSE(delta.text.empty());
    EXPECT_EQ(call + 1, before.tool_calls.size())
        << "a piece of a call that is over, or of one without a name";
  } else {
    EXPECT_EQ(call, before.tool_calls.size()) << "a name may come only once, and calls are numbered through";
  }
}

void check_arguments(const OutputParser& parser, const ParsedOutput& result) {
  ASSERT_EQ(result.tool_calls.size(), static_cast<size_t>(parser.num_calls()));
  ASSERT_LE(parser.num_complete_calls(), parser.num_calls());
  for (size_t i = 0; i < result.tool_calls.size(); ++i) {
    const std::string& arguments = result.tool_calls[i].arguments;
    const auto document =
        JsonDocument::parse(arguments, "arguments", {.max_bytes = 1 << 28, .max_depth = 256});
    const bool complete = static_cast<int>(i) < parser.num_complete_calls();
    EXPECT_EQ(document.ok(), complete) << arguments;
    EXPECT_TRUE(!document.ok() || document->root().is_object()) << arguments;
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const OutputCase& test) {
  return out << test.name;
}

std::ostream& operator<<(std::ostream& out, const ParsedOutput& output) {
  out << "reasoning " << output.reasoning << "\ncontent " << output.content;
  for (const ParsedToolCall& call : output.tool_calls) out << "\ncall " << call.name << " " << call.arguments;
  return out;
}

std::string with_markers(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '@')
      out += kToolMarker;
    else
      out += c;
  }
  return out;
}

ParsedOutput parse_chunks(const OutputParserOptions& options, const std::vector<std::string>& chunks) {
  OutputParser parser(options);
  ParsedOutput result;
  std::vector<OutputDelta> deltas;
  const auto take = [&] {
    for (const OutputDelta& delta : deltas) {
      check_delta(delta, result);
      result.add(delta);
    }
    deltas.clear();
  };
  for (const std::string& chunk : chunks) {
    parser.feed(chunk, deltas);
    take();
  }
  parser.finish(deltas);
  take();
  check_arguments(parser, result);
  return result;
}

std::vector<std::vector<std::string>> chunkings(const std::string& text) {
  std::vector<std::vector<std::string>> all = {{text}, per_character(text), {}};
  for (const char byte : text) all[2].emplace_back(1, byte);
  std::mt19937 random(static_cast<unsigned>(text.size()));
  for (int i = 0; i < kRandomChunkings; ++i) {
    std::vector<std::string> chunks;
    const size_t longest = 1 + random() % 40;
    for (size_t at = 0; at < text.size(); at += chunks.back().size())
      chunks.push_back(text.substr(at, random() % 16 == 0 ? 0 : 1 + random() % longest));
    all.push_back(std::move(chunks));
  }
  return all;
}

void expect_parses(const OutputCase& test) {
  const std::string tools_json =
      R"([{"type":"function","function":{"name":"f","parameters":)" + test.parameters + "}}]";
  const auto document = JsonDocument::parse(tools_json, "tools");
  ASSERT_TRUE(document.ok()) << document.error().message;
  const auto tools = ToolSet::from_json(document->root());
  ASSERT_TRUE(tools.ok()) << tools.error().message;
  const OutputParserOptions options{.parse_reasoning = test.parse_reasoning,
                                    .starts_in_reasoning = test.starts_in_reasoning,
                                    .parse_tools = test.parse_tools,
                                    .tools = &tools.value()};
  ParsedOutput expected = test.expected;
  expected.content = with_markers(expected.content);
  expected.reasoning = with_markers(expected.reasoning);
  for (ParsedToolCall& call : expected.tool_calls) call.arguments = with_markers(call.arguments);
  int index = 0;
  for (const auto& chunks : chunkings(with_markers(test.text))) {
    SCOPED_TRACE(testing::Message() << "chunking " << index++ << " of " << chunks.size() << " chunks");
    const ParsedOutput result = parse_chunks(options, chunks);
    EXPECT_EQ(result.reasoning, expected.reasoning);
    EXPECT_EQ(result.content, expected.content);
    ASSERT_EQ(result.tool_calls.size(), expected.tool_calls.size());
    for (size_t i = 0; i < expected.tool_calls.size(); ++i) {
      EXPECT_EQ(result.tool_calls[i].name, expected.tool_calls[i].name);
      EXPECT_EQ(result.tool_calls[i].arguments, expected.tool_calls[i].arguments);
    }
    if (testing::Test::HasFailure()) return;  // the other chunkings would say the same
  }
}

}  // namespace sparrow
