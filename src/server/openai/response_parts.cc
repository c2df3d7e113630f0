// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response_parts.h"

#include "base/strf.h"

namespace sparrow::openai {
namespace {

void write_prompt_entry(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprobs& entry) {
  json.begin_object();
  const auto add = [&](const TokenLogprob& token, int rank) {
    json.key(strf("{}", token.id)).begin_object().key("logprob").number(token.logprob);
    json.key("rank").integer(rank);
    json.key("decoded_token").string(token_text(tokenizer, token.id)).end_object();
  };
  bool listed = false;
  for (size_t i = 0; i < entry.top.size(); ++i) {
    add(entry.top[i], static_cast<int>(i) + 1);
    listed |= entry.top[i].id == entry.token.id;
  }
  if (!listed) add(entry.token, entry.rank);
  json.end_object();
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode(std::span(&id, 1)).value();
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details").begin_object().key("cached_tokens").integer(usage.cached_tokens);
  if (usage.media_tokens > 0) json.key("image_tokens").integer(usage.media_tokens);
  json.end_object();
  json.key("completion_tokens_details").begin_object();
  json.key("reasoning_tokens").integer(usage.reasoning_tokens).end_object();
  json.end_object();
}

void write_head(JsonWriter& json, const AnswerHead& head, std::string_view object) {
  json.begin_object();
  json.key("id").string(head.id);
  json.key("object").string(object);
  json.key("created").integer(head.created);
  json.key("model").string(head.model);
}

void write_string_or_null(JsonWriter& json, std::string_view key, std::string_view text) {
  json.key(key);
  text.empty() ? json.null() : json.string(text);
}

void write_stop_reason(JsonWriter& json, const StopReason& reason) {
  if (!reason.id) return write_string_or_null(json, "stop_reason", reason.text);
  json.key("stop_reason").integer(*reason.id);
}

void write_ids(JsonWriter& json, std::string_view key, std::optional<std::span<const int32_t>> ids) {
  if (!ids) return;
  json.key(key).begin_array();
  for (const int32_t id : *ids) json.integer(id);
  json.end_array();
}

void add_prompt_logprobs(JsonPieces& out, const Tokenizer& tokenizer, const Choice& choice) {
  if (!choice.wants_prompt_logprobs)
    return out.add([](JsonWriter& json) { json.key("prompt_logprobs").null(); });
  out.add([](JsonWriter& json) { json.key("prompt_logprobs").begin_array().null(); });
  out.add_each(choice.prompt_logprobs.size(),
               [&tokenizer, entries = choice.prompt_logprobs](JsonWriter& json, size_t i) {
                 write_prompt_entry(json, tokenizer, entries[i]);
               });
  out.add([](JsonWriter& json) { json.end_array(); });
}

void add_head(JsonPieces& out, const AnswerHead& head, const char* object) {
  out.add([&head, object](JsonWriter& json) {
    write_head(json, head, object);
    json.key("choices").begin_array();
  });
}

void append_event(std::string& out, std::string_view json) {
  out += "data: ";
  out += json;
  out += "\n\n";
}

void OpenAiWriter::write_stream_usage(JsonWriter& json, const Usage& usage) const {
  if (usage_.continuous) return write_usage(json, usage);
  if (usage_.included) json.key("usage").null();
}

void OpenAiWriter::append_end(std::string& out, const AnswerHead& head, const Usage& usage) {
  if (!usage_.included) return;
  JsonWriter json;
  write_head(json, head, chunk_object_);
  json.key("choices").begin_array().end_array();
  write_usage(json, usage);
  json.end_object();
  append_event(out, json.text());
}

void OpenAiWriter::append_failure(std::string& out, const AnswerHead&, const ApiError& error) {
  append_event(out, error_json(error));
}

void OpenAiWriter::append_keep_alive(std::string& out, const AnswerHead&, const Usage&) {
  out += ": keep-alive\n\n";
}

}  // namespace sparrow::openai
