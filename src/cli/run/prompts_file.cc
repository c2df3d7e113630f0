// SPDX-License-Identifier: Apache-2.0
#include "cli/run/prompts_file.h"

#include <array>
#include <charconv>
#include <limits>

#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/text/suggest.h"

namespace sparrow::cli {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxCount = int64_t{1} << 40;

struct Target {
  const Tokenizer* tokenizer;
  Request& request;
};

Result<std::vector<int32_t>> ids_of(const Json& value) {
  SPARROW_TRY(value.expect_array());
  std::vector<int32_t> ids(value.size());
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = static_cast<int32_t>(SPARROW_TRY(value.element(i).as_int(0, kMaxId)));
  return ids;
}

Status read_prompt(const Json& value, Target& to) {
  if (!to.tokenizer) return value.error("cannot be used: the model has no tokenizer.json, give prompt_ids");
  const std::string text = SPARROW_TRY(value.as_string());
  to.request.prompts.push_back(SPARROW_TRY(to.tokenizer->encode(text)));
  return Ok{};
}

Status read_prompt_ids(const Json& value, Target& to) {
  to.request.prompts.push_back(SPARROW_TRY(ids_of(value)));
  return Ok{};
}

// {"17": -100, "18": 2.5}
Status read_logit_bias(const Json& value, Target& to) {
  SPARROW_TRY(value.expect_object());
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string_view key = value.key(i);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size())
      return value.error("must have token ids as keys");
    to.request.sampling.logit_bias.emplace_back(id,
                                                static_cast<float>(SPARROW_TRY(value.member(i).as_number())));
  }
  return Ok{};
}

template <double SamplingParams::*kField>
Status read_number(const Json& value, Target& to) {
  to.request.sampling.*kField = SPARROW_TRY(value.as_number());
  return Ok{};
}

template <std::vector<int32_t> SamplingParams::*kField>
Status read_ids(const Json& value, Target& to) {
  to.request.sampling.*kField = SPARROW_TRY(ids_of(value));
  return Ok{};
}

template <int64_t Request::*kField>
Status read_count(const Json& value, Target& to) {
  to.request.*kField = SPARROW_TRY(value.as_int(0, kMaxCount));
  return Ok{};
}

Status read_top_k(const Json& value, Target& to) {
  to.request.sampling.top_k = static_cast<int>(SPARROW_TRY(value.as_int(0, kMaxId)));
  return Ok{};
}

Status read_seed(const Json& value, Target& to) {
  to.request.sampling.seed = SPARROW_TRY(value.as_int(0, std::numeric_limits<int64_t>::max()));
  return Ok{};
}

Status read_stop_ids(const Json& value, Target& to) {
  to.request.stop_ids = SPARROW_TRY(ids_of(value));
  return Ok{};
}

Status read_ignore_eos(const Json& value, Target& to) {
  to.request.ignore_eos = SPARROW_TRY(value.as_bool());
  return Ok{};
}

Status read_priority(const Json& value, Target& to) {
  to.request.priority = static_cast<int>(SPARROW_TRY(value.as_int(-kMaxId, kMaxId)));
  return Ok{};
}

struct Field {
  std::string_view name;
  Status (*read)(const Json& value, Target& to);
};

constexpr std::array kFields = {
    Field{"prompt", read_prompt},
    Field{"prompt_ids", read_prompt_ids},
    Field{"max_tokens", read_count<&Request::max_tokens>},
    Field{"min_tokens", read_count<&Request::min_tokens>},
    Field{"temperature", read_number<&SamplingParams::temperature>},
    Field{"top_p", read_number<&SamplingParams::top_p>},
    Field{"top_k", read_top_k},
    Field{"min_p", read_number<&SamplingParams::min_p>},
    Field{"repetition_penalty", read_number<&SamplingParams::repetition_penalty>},
    Field{"presence_penalty", read_number<&SamplingParams::presence_penalty>},
    Field{"frequency_penalty", read_number<&SamplingParams::frequency_penalty>},
    Field{"logit_bias", read_logit_bias},
    Field{"allowed_token_ids", read_ids<&SamplingParams::allowed_ids>},
    Field{"banned_token_ids", read_ids<&SamplingParams::banned_ids>},
    Field{"stop_token_ids", read_stop_ids},
    Field{"ignore_eos", read_ignore_eos},
    Field{"seed", read_seed},
    Field{"priority", read_priority},
};

Error unknown_field(const Json& root, size_t i) {
  std::vector<std::string> known = {"id"};
  for (const Field& field : kFields) known.emplace_back(field.name);
  const std::string nearest = nearest_word(root.key(i), known);
  return {Errc::kInvalidArgument,
          strf("unknown field {} with value {}{}", json_quoted(root.key(i)), root.member(i).brief(),
               nearest.empty() ? "" : ", did you mean " + nearest + "?"),
          std::string(root.key(i))};
}

Status read_id(const Json& root, PromptLine& line) {
  const std::optional<Json> id = root.find("id");
  if (!id) return Ok{};
  if (id->is_string())
    line.id = json_quoted(id->string_view());
  else if (const auto digits = id->integer_digits())
    line.id = *digits;
  else
    return id->error("must be a string or an integer");
  return Ok{};
}

}  // namespace

Status parse_prompt_line(std::string_view text, const Tokenizer* tokenizer, PromptLine& line) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(text, "line"));
  const Json root = document.root();
  SPARROW_TRY(root.expect_object());
  SPARROW_TRY(read_id(root, line));
  Target target{tokenizer, line.request};
  for (size_t i = 0; i < root.size(); ++i) {
    const std::string_view key = root.key(i);
    if (key == "id") continue;
    const auto field =
        std::find_if(kFields.begin(), kFields.end(), [&](const Field& f) { return f.name == key; });
    if (field == kFields.end()) return unknown_field(root, i);
    const Json value = root.member(i);
    if (!value.is_null()) SPARROW_TRY(field->read(value, target));
  }
  if (line.request.prompts.size() != 1)
    return Error{Errc::kInvalidArgument, "a line takes exactly one of prompt and prompt_ids", "prompt"};
  return Ok{};
}

std::string format_output_line(const OutputLine& line, const Tokenizer* tokenizer) {
  JsonWriter json(JsonWriter::Style::kSpaced);
  json.begin_object().key("id").raw(line.id);
  if (!line.error.empty()) {
    json.key("line").integer(line.number).key("error").string(line.error);
    return json.end_object().take();
  }
  json.key("output_ids").begin_array();
  for (const int32_t id : line.output_ids) json.integer(id);
  json.end_array().key("text");
  if (tokenizer)
    json.string(tokenizer->decode(line.output_ids, /*skip_special=*/true).value());
  else
    json.null();
  json.key("finish_reason").string(name_of(line.finish)).key("cached_tokens").integer(line.cached_tokens);
  return json.end_object().take();
}

}  // namespace sparrow::cli
