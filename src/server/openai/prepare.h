// SPDX-License-Identifier: Apache-2.0
// From the body of a completion request to what the engine runs and how its answers are read. Pure: no
// network, no engine; may take long for a long prompt, so it runs on a worker thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "server/openai/answer.h"
#include "server/openai/fields.h"
#include "text/chat_template.h"
#include "text/output/tool_schema.h"
#include "text/tokenizer/encode_cache.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow::openai {

// What is served.
struct ServedModel {
  std::vector<std::string> names;  // answers carry the first one
  const Tokenizer& tokenizer;
  EncodeCache& encode_cache;
  const ChatTemplate* chat_template = nullptr;  // null: only text completions
  Defaults defaults;
  bool parse_reasoning = true, parse_tools = true;
};

enum class Endpoint { kChat, kCompletion };

// A request that is ready to run.
struct Prepared {
  Endpoint endpoint;
  std::optional<JsonDocument> document;  // where there are tools, which point into it
  GenerationFields fields;
  Request request;
  ToolSet tools;         // `answer.parser` points to it
  AnswerOptions answer;  // of every choice
  bool echo = false;
  const char* warning = nullptr;          // for the log
  int64_t answer_bytes = 0;               // about what echoes and log-probabilities will take
  std::vector<std::string> prompt_texts;  // of echo

  int64_t num_prompt_tokens() const;
};

inline constexpr JsonLimits kBodyLimits{.max_bytes = size_t{64} << 20, .max_depth = 64};

// Errc::kNotFound: the model that was asked for is not served. What is cached of the request is reused
// only for the same tenant, and only for the same cache_salt where there is one.
Result<std::unique_ptr<Prepared>> prepare(Endpoint endpoint, std::string_view body, const ServedModel& model,
                                          std::string_view tenant = "");

// The prompt, or what was asked for with it, is more than the model takes: clients shorten and ask again.
bool is_too_long(const Error& error);

// Error where `name` is given and not one of the model's names.
Status check_model(const std::optional<std::string>& name, const ServedModel& model);

// The bodies of the answers to /tokenize and /detokenize.
Result<std::string> tokenize(std::string_view body, const ServedModel& model, std::string_view tenant = "");
Result<std::string> detokenize(std::string_view body, const ServedModel& model);

}  // namespace sparrow::openai
