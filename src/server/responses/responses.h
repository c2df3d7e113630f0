// SPDX-License-Identifier: Apache-2.0
// OpenAI's Responses API: a request is translated into a chat, its answer is written as items.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api/writer.h"
#include "server/openai/prepare.h"
#include "server/responses/store.h"
#include "server/responses/tools.h"

namespace sparrow::responses {

extern const openai::Api kResponsesApi, kCountApi;

// What a response says of its request, and how it is to be written.
struct ResponseOptions {
  std::vector<std::pair<std::string, std::string>> echoes;  // member -> JSON, in their order
  bool packs_thoughts = false;                              // reasoning items carry encrypted_content
  ToolTable tools = {};                                     // how its client knows them
  // Where it is stored, for whom, and what it was made of.
  ResponseStore* store = nullptr;  // null: nowhere
  std::string key = {};
  StoredItems input = {};
};

std::unique_ptr<AnswerWriter> make_writer(ResponseOptions options);

}  // namespace sparrow::responses
