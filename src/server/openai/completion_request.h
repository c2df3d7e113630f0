// SPDX-License-Identifier: Apache-2.0
// A text completion as it was asked for.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/openai/fields.h"

namespace sparrow::openai {

struct CompletionRequest {
  GenerationFields fields;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // text or ids
  bool echo = false;                                                     // the prompt is part of the answer
};

std::span<const Field> completion_fields();  // beside shared_fields()
Result<CompletionRequest> read_completion_request(const Json& body, const Defaults& defaults);

}  // namespace sparrow::openai
