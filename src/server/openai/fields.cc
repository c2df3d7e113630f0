// SPDX-License-Identifier: Apache-2.0
#include "server/openai/fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>

namespace sparrow::openai {
namespace {

// Stop strings are looked for after every token: their number and length bound that work.
constexpr size_t kMaxStops = 32, kMaxStopBytes = 256;
constexpr size_t kMaxBiases = 1024, kMaxStopIds = 256, kMaxListedIds = size_t{1} << 18;
constexpr size_t kMaxSaltBytes = 256;

constexpr std::array<std::string_view, 32> kShared = {
    "model",
    "n",
    "stream",
    "stream_options",
    "stop",
    "include_stop_str_in_output",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "allowed_token_ids",
    "logprobs",
    "prompt_logprobs",
    "priority",
    "cache_salt",
    "user",
    "metadata",
    "store",
    "service_tier",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "best_of",
    "use_beam_search",
};

// Fields that change nothing here when they have such a value; any other value asks for something that is
// not here.
struct NeutralField {
  std::string_view name;
  bool (*fits)(const Json&);
  std::string_view expectation;
};

bool is_bool(const Json& value, bool wanted) {
  return value.is_bool() && value.as_bool().value() == wanted;
}
bool is_one_of(const Json& value, std::initializer_list<std::string_view> words) {
  return value.is_string() && std::find(words.begin(), words.end(), value.string_view()) != words.end();
}
bool is_text(const Json& value) {
  return value.is_string();
}

constexpr std::array kNeutral = {
    NeutralField{"store", [](const Json& v) { return is_bool(v, false); },
                 "must be false: answers are not stored"},
    NeutralField{"use_beam_search", [](const Json& v) { return is_bool(v, false); },
                 "must be false: there is no beam search"},
    NeutralField{"best_of", [](const Json& v) { return v.is_number() && v.as_number().value() == 1; },
                 "must be 1: use n"},
    NeutralField{"skip_special_tokens", [](const Json& v) { return is_bool(v, true); },
                 "must be true: control tokens are never part of the text"},
    NeutralField{"spaces_between_special_tokens", [](const Json& v) { return v.is_bool(); },
                 "must be true or false"},
    NeutralField{"service_tier",
                 [](const Json& v) {
                   return is_one_of(v, {"auto", "default"});
                 },
                 "must be auto or default: there is one tier"},
    // For the client's and the operator's own records.
    NeutralField{"metadata", [](const Json& v) { return v.is_object(); }, "must be an object"},
    NeutralField{"user", is_text, "must be a string"},
    NeutralField{"safety_identifier", is_text, "must be a string"},
    // Where a prefix would be found again: one server has nowhere else to look.
    NeutralField{"prompt_cache_key", is_text, "must be a string"},
    NeutralField{"prompt_cache_retention",
                 [](const Json& v) {
                   return is_one_of(v, {"in_memory", "in-memory"});
                 },
                 "must be in_memory: prefixes are kept as long as there is room"},
};

Status check_known(const Json& body, std::span<const std::string_view> own_fields) {
  for (size_t i = 0; i < body.size(); ++i) {
    const std::string_view key = body.key(i);
    const auto in = [key](std::span<const std::string_view> list) {
      return std::find(list.begin(), list.end(), key) != list.end();
    };
    if (!in(kShared) && !in(own_fields)) return body.member(i).error("is not a field of this request");
  }
  for (const NeutralField& field : kNeutral)
    if (const auto value = body.find(field.name); value && !field.fits(*value))
      return value->error(field.expectation);
  return Ok{};
}

Result<double> read_number(const Json& body, std::string_view key, double fallback, double min, double max) {
  const auto field = body.find(key);
  if (!field) return fallback;
  const double value = SPARROW_TRY(field->as_number());
  if (!(value >= min && value <= max)) return field->error(strf("must be a number from {} to {}", min, max));
  return value;
}

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
      obfuscation && !is_bool(*obfuscation, false))
    return obfuscation->error("must be false: the length of a chunk is that of its text");
  fields.include_usage = SPARROW_TRY(options->bool_or("include_usage", false));
  const bool continuous = SPARROW_TRY(options->bool_or("continuous_usage_stats", false));
  fields.continuous_usage = fields.include_usage && continuous;
  return Ok{};
}

Status read_sampling(const Json& body, const Defaults& defaults, GenerationFields& fields) {
  SamplingParams& sampling = fields.request.sampling;
  sampling.temperature = SPARROW_TRY(read_number(body, "temperature", defaults.temperature, 0, 2));
  sampling.top_p = SPARROW_TRY(read_number(body, "top_p", defaults.top_p, 0, 1));
  if (sampling.top_p == 0) return SPARROW_TRY(body.at("top_p")).error("must be above 0");
  // -1 is how some clients spell "all".
  sampling.top_k = static_cast<int>(
      std::max<int64_t>(SPARROW_TRY(body.int_or("top_k", defaults.top_k, -1, defaults.vocab_size)), 0));
  sampling.min_p = SPARROW_TRY(read_number(body, "min_p", 0, 0, 1));
  sampling.presence_penalty = SPARROW_TRY(read_number(body, "presence_penalty", 0, -2, 2));
  sampling.frequency_penalty = SPARROW_TRY(read_number(body, "frequency_penalty", 0, -2, 2));
  sampling.repetition_penalty = SPARROW_TRY(read_number(body, "repetition_penalty", 1, 0.01, 100));
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
  constexpr int64_t kMax = int64_t{1} << 31;
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
  fields.include_stop_in_output = SPARROW_TRY(body.bool_or("include_stop_str_in_output", false));
  return Ok{};
}

}  // namespace

Status check_members(const Json& object, std::span<const std::string_view> known, std::string_view what) {
  SPARROW_TRY(object.expect_object());
  for (size_t i = 0; i < object.size(); ++i)
    if (std::find(known.begin(), known.end(), object.key(i)) == known.end())
      return object.member(i).error(strf("is not a field of {}", what));
  return Ok{};
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
                                                std::span<const std::string_view> own_fields) {
  SPARROW_TRY(body.expect_object());
  SPARROW_TRY(check_known(body, own_fields));
  GenerationFields fields;
  if (const auto model = body.find("model")) fields.model = SPARROW_TRY(model->as_string());
  fields.request.n = static_cast<int>(SPARROW_TRY(body.int_or("n", 1, 1, kMaxChoices)));
  SPARROW_TRY(read_stream(body, fields));
  SPARROW_TRY(read_sampling(body, defaults, fields));
  SPARROW_TRY(read_lengths(body, defaults, fields));
  if (const auto count = body.find("prompt_logprobs")) {
    if (fields.stream) return count->error("is not supported with stream");
    fields.request.prompt_logprobs = SPARROW_TRY(read_logprob_count(*count, defaults));
    fields.wants_prompt_logprobs = true;
  }
  fields.request.priority = static_cast<int>(SPARROW_TRY(body.int_or("priority", 0, -1000000, 1000000)));
  if (const auto salt = body.find("cache_salt")) {
    fields.cache_salt = SPARROW_TRY(salt->as_string());
    if (fields.cache_salt->empty() || fields.cache_salt->size() > kMaxSaltBytes)
      return salt->error(strf("must be a string of 1 to {} bytes", kMaxSaltBytes));
  }
  return fields;
}

}  // namespace sparrow::openai
