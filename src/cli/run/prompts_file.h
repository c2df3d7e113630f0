// SPDX-License-Identifier: Apache-2.0
// Prompts and results of `sparrow generate --prompts`: one JSON object per line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/request.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::cli {

struct PromptLine {
  std::string id = "null";  // as JSON
  Request request;          // defaults, and what the line says
};

// Fills `line` as far as it goes, the id first. Error: names the field and the value; a field that does not
// exist is one. `tokenizer` may be null: then "prompt" is an error.
Status parse_prompt_line(std::string_view text, const Tokenizer* tokenizer, PromptLine& line);

// One output, while it grows.
struct OutputLine {
  std::string id = "null";
  int64_t number = 0;  // of the line, from 1
  std::vector<int32_t> output_ids;
  FinishReason finish = FinishReason::kError;
  int64_t cached_tokens = 0;
  std::string error;
  bool complete = false;
};

// The line without its newline. Text is null without a tokenizer, and leaves special tokens out.
std::string format_output_line(const OutputLine& line, const Tokenizer* tokenizer);

}  // namespace sparrow::cli
