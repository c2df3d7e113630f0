// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: a request is translated into a chat, its answer is written as items.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/api/writer.h"
#include "server/openai/prepare.h"

namespace sparrow::responses {

extern const openai::Api kResponsesApi;

// What a response says of its request, and how it is to be written.
struct ResponseOptions {
  std::vector<std::pair<std::string, std::string>> echoes;  // member -> JSON, in their order
  bool packs_thoughts = false;                              // reasoning items carry encrypted_content
};

std::unique_ptr<AnswerWriter> make_writer(ResponseOptions options);

}  // namespace sparrow::responses
