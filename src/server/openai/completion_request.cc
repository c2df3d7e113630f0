// SPDX-License-Identifier: Apache-2.0
#include "server/openai/completion_request.h"

namespace sparrow::openai {
namespace {

constexpr int64_t kDefaultMaxTokens = 16;  // OpenAI's
constexpr Field kOwnFields[] = {
    with_schema("prompt", Field::Type::kAny,
                R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},)"
                R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},)"
                R"({"type":"array","minItems":1,"items":{"anyOf":[{"type":"string"},)"
                R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}]}}]})"),
    {"echo", Field::Type::kBool},
    with_schema("suffix", Field::Type::kString, R"({"const":""})"),
    {"logprobs", Field::Type::kInteger, 0, kMaxLogprobs},
};

// A string, a list of strings, a list of ids, or a list of lists of ids.
Status read_prompts(const Json& prompt, int vocab_size, CompletionRequest& request) {
  const auto add_ids = [&](const Json& ids) -> Status {
    if (ids.size() == 0) return ids.error("must hold at least one token id");
    request.prompts.emplace_back(SPARROW_TRY(read_token_ids(ids, vocab_size)));
    return Ok{};
  };
  if (prompt.is_string()) {
    request.prompts.emplace_back(std::string(prompt.string_view()));
    return Ok{};
  }
  if (!prompt.is_array() || prompt.size() == 0)
    return prompt.error("must be a string, a list of strings, a list of token ids or a list of such lists");
  if (prompt.element(0).is_number()) return add_ids(prompt);
  const size_t max_prompts = static_cast<size_t>(kMaxOutputs / request.fields.request.n);
  if (prompt.size() > max_prompts)
    return Error{Errc::kInvalidArgument,
                 strf("prompt has {} members and n is {}: at most {} answers in one request", prompt.size(),
                      request.fields.request.n, kMaxOutputs),
                 prompt.path()};
  for (size_t i = 0; i < prompt.size(); ++i) {
    const Json element = prompt.element(i);
    if (element.is_array()) {
      SPARROW_TRY(add_ids(element));
    } else {
      request.prompts.emplace_back(SPARROW_TRY(element.as_string()));
    }
  }
  return Ok{};
}

}  // namespace

std::span<const Field> completion_fields() {
  return kOwnFields;
}

Result<CompletionRequest> read_completion_request(const Json& body, const Defaults& defaults) {
  CompletionRequest request;
  request.fields = SPARROW_TRY(read_generation_fields(body, defaults, kOwnFields));
  if (const auto suffix = body.find("suffix"); suffix && !suffix->string_view().empty())
    return suffix->error("must be empty: text cannot be filled in before one");
  SPARROW_TRY(read_prompts(SPARROW_TRY(body.at("prompt")), defaults.vocab_size, request));
  request.echo = SPARROW_TRY(body.bool_or("echo", false));
  if (!request.fields.max_tokens) request.fields.max_tokens = kDefaultMaxTokens;
  if (const auto count = body.find("logprobs"))
    request.fields.request.logprobs = SPARROW_TRY(read_logprob_count(*count, defaults));
  // The prompt's own log-probabilities are part of an echoed answer.
  if (request.echo && request.fields.request.logprobs && !request.fields.request.prompt_logprobs)
    request.fields.request.prompt_logprobs = request.fields.request.logprobs;
  return request;
}

}  // namespace sparrow::openai
