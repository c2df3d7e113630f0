// SPDX-License-Identifier: Apache-2.0
// Cases for the output parser, each tried in many chunkings.
#pragma once

#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "text/output/output_parser.h"

namespace sparrow {

// '@' in the texts of a case stands for the namespace marker.
struct OutputCase {
  std::string name;  // of the test
  std::string text;
  ParsedOutput expected;
  std::string parameters = "{}";  // schema of the parameters of the tool called f
  bool starts_in_reasoning = false;
  bool parse_reasoning = true;
  bool parse_tools = true;
};
std::ostream& operator<<(std::ostream& out, const OutputCase& test);
std::ostream& operator<<(std::ostream& out, const ParsedOutput& output);

// The text with the marker for each '@'.
std::string with_markers(std::string_view text);

// Cuts `text` into the given chunks and checks what must hold for every answer: deltas are whole UTF-8 and
// never empty, the name of a call comes once and first, complete calls are JSON and broken ones are not.
ParsedOutput parse_chunks(const OutputParserOptions& options, const std::vector<std::string>& chunks);

// Whole, per character, per byte, and in 50 random chunkings.
std::vector<std::vector<std::string>> chunkings(const std::string& text);

// Parses the case in all chunkings.
void expect_parses(const OutputCase& test);

}  // namespace sparrow
