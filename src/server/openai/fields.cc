// SPDX-License-Identifier: Apache-2.0
#include "server/openai/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace sparrow::openai {
namespace {

// Stop strings are looked for after every token: their number and length bound that work.
constexpr size_t kMaxStops = 32, kMaxStopBytes = 256;
constexpr size_t kMaxBiases = 1024, kMaxStopIds = 256, kMaxListedIds = size_t{1} << 18;
constexpr size_t kMaxSaltBytes = 256;

constexpr double kMaxTokens = 0x1p31;

using Type = Field::Type;
constexpr std::string_view kStopSchema =
    R"({"anyOf":[{"type":"string","minLength":1,"maxLength":256},)"
    R"({"type":"array","maxItems":32,"items":{"type":"string","minLength":1,"maxLength":256}}]})";
constexpr std::string_view kWordsSchema =
    R"({"type":"array","maxItems":32,"items":{"type":"string","minLength":1,"maxLength":256}})";

constexpr Field kShared[] = {
    {"model", Type::kString},
    {"n", Type::kInteger, 1, kMaxChoices},
    {"stream", Type::kBool},
    with_schema("stream_options", Type::kObject, R"({"$ref":"#/components/schemas/StreamOptions"})"),
    with_schema("stop", Type::kAny, kStopSchema),
    {"include_stop_str_in_output", Type::kBool},
    {"stop_token_ids", Type::kTokenIds},
    {"ignore_eos", Type::kBool},
    {"min_tokens", Type::kInteger, 0, kMaxTokens},
    {"max_tokens", Type::kInteger, 0, kMaxTokens},
    {"temperature", Type::kNumber, 0, 2},
    {"top_p", Type::kNumber, 0, 1},
    {"top_k", Type::kInteger, -1, kMaxTokens},
    {"min_p", Type::kNumber, 0, 1},
    {"seed", Type::kInteger},
    with_schema("logit_bias", Type::kObject,
                R"({"type":"object","maxProperties":1024,"propertyNames":{"pattern":"^-?[0-9]+$"},)"
                R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})"),
    {"presence_penalty", Type::kNumber, -2, 2},
    {"frequency_penalty", Type::kNumber, -2, 2},
    {"repetition_penalty", Type::kNumber, 0.01, 100},
    {"allowed_token_ids", Type::kTokenIds},
    {"prompt_logprobs", Type::kInteger, 0, kMaxLogprobs},
    {"return_token_ids", Type::kBool},
    with_schema("bad_words", Type::kList, kWordsSchema),
    {"truncate_prompt_tokens", Type::kInteger, -1, kMaxTokens},
    {"response_format", Type::kObject},
    {"structured_outputs", Type::kObject},
    {"guided_json", Type::kAny},
    {"guided_regex", Type::kString},
    {"guided_choice", Type::kList},
    {"guided_grammar", Type::kString},
    {"guided_decoding_backend", Type::kString},  // there is one
    {"priority", Type::kInteger, -1e6, 1e6},
    with_schema("cache_salt", Type::kString, R"({"type":"string","minLength":1,"maxLength":256})"),
    // For the client's and the operator's own records.
    {"user", Type::kString},
    {"metadata", Type::kObject},
    {"safety_identifier", Type::kString},
    {"store", Type::kBool},
    // Hints: about speed, where a prefix would be found again, how much is said. One server has one tier and
    // nowhere else to look, and the model knows no degrees.
    {"service_tier", Type::kString},
    {"prompt_cache_key", Type::kString},
    {"prompt_cache_retention", Type::kString},
    {"prompt_cache_options", Type::kObject},
    {"prediction", Type::kObject},
    one_of("verbosity", "low|medium|high"),
    {"add_special_tokens", Type::kBool},  // the tokenizer adds none in either case
    {"spaces_between_special_tokens", Type::kBool},
    only("skip_special_tokens", true, "control tokens are never part of the text"),
    only("include_reasoning", true, "reasoning is a field of its own"),
    only("detokenize", true, "return_token_ids adds the ids"),
    only("return_tokens_as_token_ids", false, "return_token_ids adds the ids"),
    only("use_beam_search", false, "there is no beam search"),
    only("early_stopping", false, "there is no beam search"),
    only_one("length_penalty", Type::kNumber, "there is no beam search"),
    {"best_of", Type::kInteger, 1, kMaxChoices},
};

Result<std::vector<std::string>> read_stop(const Json& stop) {
  std::vector<std::string> out;
  const auto add = [&out](const Json& text) -> Status {
    std::string value = SPARROW_TRY(text.as_string());
    if (value.empty() || value.size() > kMaxStopBytes)
      return text.error(strf("must be a string of 1 to {} bytes", kMaxStopBytes));
    out.push_back(std::move(value));
    return Ok{};
  };
  if (stop.is_string()) {
    SPARROW_TRY(add(stop));
    return out;
  }
  if (!stop.is_array() || stop.size() > kMaxStops)
    return stop.error(strf("must be a string or a list of at most {} strings", kMaxStops));
  for (size_t i = 0; i < stop.size(); ++i) SPARROW_TRY(add(stop.element(i)));
  return out;
}

Result<std::vector<std::pair<int32_t, float>>> read_logit_bias(const Json& bias, int vocab_size) {
  SPARROW_TRY(bias.expect_object());
  if (bias.size() > kMaxBiases) return bias.error(strf("must have at most {} members", kMaxBiases));
  std::vector<std::pair<int32_t, float>> out;
  for (size_t i = 0; i < bias.size(); ++i) {
    const std::string_view key = bias.key(i);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || id < 0 || id >= vocab_size)
      return bias.member(i).error(strf("must be named by a token id below {}", vocab_size));
    const double value = SPARROW_TRY(bias.member(i).as_number());
    if (!(value >= -100 && value <= 100)) return bias.member(i).error("must be a number from -100 to 100");
    out.emplace_back(id, static_cast<float>(value));
  }
  return out;
}

Status read_stream(const Json& body, GenerationFields& fields) {
  fields.stream = SPARROW_TRY(body.bool_or("stream", false));
  const auto options = body.find("stream_options");
  if (!options) return Ok{};
  static constexpr std::array<std::string_view, 3> kOptions = {"include_usage", "continuous_usage_stats",
                                                               "include_obfuscation"};
  SPARROW_TRY(options->expect_object());
  if (!fields.stream) return options->error("is only allowed when stream is true");
  SPARROW_TRY(check_members(*options, kOptions, "stream_options"));
  if (const auto obfuscation = options->find("include_obfuscation");
      obfuscation && SPARROW_TRY(obfuscation->as_bool()))
    return obfuscation->error("must be false: the length of a chunk is that of its text");
  fields.include_usage = SPARROW_TRY(options->bool_or("include_usage", false));
  const bool continuous = SPARROW_TRY(options->bool_or("continuous_usage_stats", false));
  fields.continuous_usage = fields.include_usage && continuous;
  return Ok{};
}

// Ranges are those of the table.
Status read_sampling(const Json& body, const Defaults& defaults, GenerationFields& fields) {
  constexpr int64_t kAny = int64_t{1} << 31;
  SamplingParams& sampling = fields.request.sampling;
  sampling.temperature = SPARROW_TRY(body.number_or("temperature", defaults.temperature));
  sampling.top_p = SPARROW_TRY(body.number_or("top_p", defaults.top_p));
  // -1 is how some clients spell "all".
  sampling.top_k = static_cast<int>(std::clamp<int64_t>(
      SPARROW_TRY(body.int_or("top_k", defaults.top_k, -1, kAny)), 0, defaults.vocab_size));
  // The smallest set of ids that reaches no probability at all: the best one.
  if (sampling.top_p == 0) sampling.top_p = 1, sampling.top_k = 1;
  sampling.min_p = SPARROW_TRY(body.number_or("min_p", 0));
  sampling.presence_penalty = SPARROW_TRY(body.number_or("presence_penalty", 0));
  sampling.frequency_penalty = SPARROW_TRY(body.number_or("frequency_penalty", 0));
  sampling.repetition_penalty = SPARROW_TRY(body.number_or("repetition_penalty", 1));
  if (const auto bias = body.find("logit_bias"))
    sampling.logit_bias = SPARROW_TRY(read_logit_bias(*bias, defaults.vocab_size));
  if (const auto ids = body.find("allowed_token_ids")) {
    if (ids->size() == 0 || ids->size() > kMaxListedIds) return ids->error("must be a list of token ids");
    sampling.allowed_ids = SPARROW_TRY(read_token_ids(*ids, defaults.vocab_size));
  }
  if (const auto seed = body.find("seed"))
    fields.seed = static_cast<uint64_t>(
        SPARROW_TRY(seed->as_int(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max())));
  return Ok{};
}

Status read_lengths(const Json& body, const Defaults& defaults, GenerationFields& fields) {
  constexpr auto kMax = static_cast<int64_t>(kMaxTokens);
  Request& request = fields.request;
  if (const auto max_tokens = body.find("max_tokens"))
    fields.max_tokens = SPARROW_TRY(max_tokens->as_int(0, kMax));
  request.min_tokens = SPARROW_TRY(body.int_or("min_tokens", 0, 0, kMax));
  request.ignore_eos = SPARROW_TRY(body.bool_or("ignore_eos", false));
  if (const auto ids = body.find("stop_token_ids")) {
    if (!ids->is_array() || ids->size() > kMaxStopIds)
      return ids->error(strf("must be a list of at most {} token ids", kMaxStopIds));
    request.stop_ids = SPARROW_TRY(read_token_ids(*ids, defaults.vocab_size));
  }
  if (const auto stop = body.find("stop")) fields.stop = SPARROW_TRY(read_stop(*stop));
  if (const auto words = body.find("bad_words")) fields.bad_words = SPARROW_TRY(read_stop(*words));
  if (const auto tokens = body.find("truncate_prompt_tokens")) {
    fields.truncate_prompt_tokens = SPARROW_TRY(tokens->as_int(-1, kMax));
    if (fields.truncate_prompt_tokens == 0) return tokens->error("must be -1 or above 0");
  }
  fields.include_stop_in_output = SPARROW_TRY(body.bool_or("include_stop_str_in_output", false));
  return Ok{};
}

}  // namespace

std::span<const Field> shared_fields() {
  return kShared;
}

Result<std::vector<int32_t>> read_token_ids(const Json& list, int vocab_size) {
  SPARROW_TRY(list.expect_array());
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i)
    ids.push_back(static_cast<int32_t>(SPARROW_TRY(list.element(i).as_int(0, vocab_size - 1))));
  return ids;
}

Result<int> read_logprob_count(const Json& field, const Defaults& defaults) {
  return static_cast<int>(SPARROW_TRY(field.as_int(0, defaults.max_logprobs)));
}

Result<GenerationFields> read_generation_fields(const Json& body, const Defaults& defaults,
                                                std::span<const Field> own_fields) {
  SPARROW_TRY(check_fields(body, {kShared, own_fields}, "this request"));
  GenerationFields fields;
  if (const auto model = body.find("model")) fields.model = SPARROW_TRY(model->as_string());
  fields.request.n = static_cast<int>(SPARROW_TRY(body.int_or("n", 1, 1, kMaxChoices)));
  // The n best of n are all of them.
  if (const auto best = body.find("best_of");
      best && SPARROW_TRY(best->as_int(1, kMaxChoices)) != fields.request.n)
    return best->error("must be equal to n: use n");
  SPARROW_TRY(read_stream(body, fields));
  SPARROW_TRY(read_sampling(body, defaults, fields));
  SPARROW_TRY(read_lengths(body, defaults, fields));
  if (const auto count = body.find("prompt_logprobs")) {
    if (fields.stream) return count->error("is not supported with stream");
    fields.request.prompt_logprobs = SPARROW_TRY(read_logprob_count(*count, defaults));
    fields.wants_prompt_logprobs = true;
  }
  fields.form = SPARROW_TRY(read_answer_form(body));
  fields.return_token_ids = SPARROW_TRY(body.bool_or("return_token_ids", false));
  fields.request.priority = static_cast<int>(SPARROW_TRY(body.int_or("priority", 0, -1000000, 1000000)));
  if (const auto salt = body.find("cache_salt")) {
    fields.cache_salt = SPARROW_TRY(salt->as_string());
    if (fields.cache_salt->empty() || fields.cache_salt->size() > kMaxSaltBytes)
      return salt->error(strf("must be a string of 1 to {} bytes", kMaxSaltBytes));
  }
  return fields;
}

}  // namespace sparrow::openai
