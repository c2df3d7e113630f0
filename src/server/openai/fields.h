// SPDX-License-Identifier: Apache-2.0
// The fields that chat and text completions share: JSON in, checked values out. Every error names the field
// and shows the value. A field that is unknown, or asks for something that is not supported yet, is
// an error: nothing a client asks for is ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/constraint/answer_form.h"
#include "server/fields/field.h"

namespace sparrow::openai {

inline constexpr int kMaxLogprobs = 20;  // alternatives of a token that a request may ask for

// What a request that leaves a field out gets.
struct Defaults {
  double temperature = 1.0, top_p = 1.0;
  int top_k = 0;
  int vocab_size = 0;
  int64_t max_model_tokens = 0;
  int max_logprobs = kMaxLogprobs;
  int64_t max_answer_bytes = int64_t{64} << 20;  // of what is known ahead: echoes and log-probabilities
};

struct GenerationFields {
  std::optional<std::string> model;
  Request request;                    // but for prompts, max_tokens and salt
  std::optional<int64_t> max_tokens;  // nullopt: the endpoint's default
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool include_stop_in_output = false;
  bool stream = false;
  bool include_usage = false;     // one more chunk, at the end
  bool continuous_usage = false;  // in every chunk
  std::optional<std::string> cache_salt;
  bool wants_prompt_logprobs = false;
  std::optional<AnswerForm> form;  // what an answer has to look like
  bool return_token_ids = false;
  std::vector<std::string> bad_words;
  std::optional<int64_t> truncate_prompt_tokens;  // only the last ones; -1: as many as fit
};

// Reads them from the request's body. `own_fields` are the endpoint's others: any field that is in neither
// list is an error.
Result<GenerationFields> read_generation_fields(const Json& body, const Defaults& defaults,
                                                std::span<const Field> own_fields);
std::span<const Field> shared_fields();

// logprobs as a count of alternatives, bounded by what the server allows.
Result<int> read_logprob_count(const Json& field, const Defaults& defaults);

// A list of token ids, each below the vocabulary's size.
Result<std::vector<int32_t>> read_token_ids(const Json& list, int vocab_size);

}  // namespace sparrow::openai
