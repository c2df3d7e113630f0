// SPDX-License-Identifier: Apache-2.0
// Any bytes as an answer: the first says what is parsed, the second how the rest is cut. However it is cut,
// the result is the same; deltas are UTF-8; complete calls are JSON and broken ones are not; without tools
// and reasoning nothing changes.
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/output/output_parser.h"

namespace {

using namespace sparrow;

constexpr std::string_view kTools = R"([{"name":"f","parameters":{
    "type":"object",
    "properties":{
      "s":{"type":"string"}, "n":{"type":"integer"}, "x":{"type":"number"}, "b":{"type":"boolean"},
      "m":{"type":["string","null"]}, "u":{"anyOf":[{"type":"integer"},{"$ref":"#/$defs/T"},{"type":"array"}]},
      "o":{"type":"object","properties":{"s":{"type":"string"},"a":{"type":"array","items":{"type":"integer"}}}},
      "a":{"type":"array","items":{"type":"string"}}, "t":{"$ref":"#/$defs/T"}, "e":{"enum":[1,"a",null,{"k":[true]}]},
      "j":{"type":"object"}},
    "additionalProperties":{"type":["integer","string"]},
    "$defs":{"T":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/T"}},"n":{"type":"integer"}}}}
  }}])";

struct Outcome {
  ParsedOutput result;
  int num_complete_calls;

  bool operator==(const Outcome&) const = default;
};

Outcome parse(const OutputParserOptions& options, std::string_view text, unsigned seed) {
  OutputParser parser(options);
  std::vector<OutputDelta> deltas;
  std::minstd_rand random(seed + 1);
  for (size_t at = 0; at < text.size();) {
    const size_t length = seed == 0 ? text.size() : seed == 1 ? 1 : 1 + random() % 9;
    parser.feed(text.substr(at, length), deltas);
    at += length;
  }
  parser.finish(deltas);
  Outcome outcome{{}, parser.num_complete_calls()};
  for (const OutputDelta& delta : deltas) {
    SPARROW_CHECK_EQ(valid_utf8_prefix(delta.text), delta.text.size());
    SPARROW_CHECK_EQ(valid_utf8_prefix(delta.name), delta.name.size());
    SPARROW_CHECK(!delta.text.empty());
    outcome.result.add(delta);
  }
  SPARROW_CHECK_EQ(outcome.result.tool_calls.size(), static_cast<size_t>(parser.num_calls()));
  return outcome;
}

void check_arguments(const Outcome& outcome) {
  for (size_t i = 0; i < outcome.result.tool_calls.size(); ++i) {
    const auto document = JsonDocument::parse(outcome.result.tool_calls[i].arguments, "arguments",
                                              {.max_bytes = size_t{1} << 30, .max_depth = 512});
    SPARROW_CHECK_EQ(document.ok(), static_cast<int>(i) < outcome.num_complete_calls);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto document = JsonDocument::parse(kTools, "tools");
  const auto tools = ToolSet::from_json(document->root());
  const OutputParserOptions options{.parse_reasoning = (data[0] & 1) != 0,
                                    .starts_in_reasoning = (data[0] & 2) != 0,
                                    .parse_tools = (data[0] & 4) != 0,
                                    .tools = &tools.value()};
  const Outcome whole = parse(options, text, 0);
  check_arguments(whole);
  for (const unsigned seed : {1u, 2u + data[1]}) SPARROW_CHECK(parse(options, text, seed) == whole);
  if (!options.parse_reasoning && !options.parse_tools)
    SPARROW_CHECK(whole.result.content == replace_invalid_utf8(text) && whole.result.reasoning.empty());
  return 0;
}
