// SPDX-License-Identifier: Apache-2.0
// What chat and text completions write alike.
#pragma once

#include <string>
#include <string_view>

#include "base/json/json_writer.h"
#include "server/openai/response.h"

namespace sparrow::openai {

// The text of one token; what is not UTF-8 alone becomes U+FFFD.
std::string token_text(const Tokenizer& tokenizer, int32_t id);

void write_usage(JsonWriter& json, const Usage& usage);
void write_head(JsonWriter& json, const AnswerHead& head, std::string_view object);
void write_string_or_null(JsonWriter& json, std::string_view key, std::string_view text);
// "stop_reason" is the string, the id, or null.
void write_stop_reason(JsonWriter& json, const StopReason& reason);

// Nothing where there are none.
void write_ids(JsonWriter& json, std::string_view key, std::optional<std::span<const int32_t>> ids);

void add_head(JsonPieces& out, const AnswerHead& head, const char* object);
// As vLLM writes them: null for the first token, then for each one a map from ids.
void add_prompt_logprobs(JsonPieces& out, const Tokenizer& tokenizer, const Choice& choice);

// "data: {...}\n\n"
void append_event(std::string& out, std::string_view json);

// Streams of both: what is not part of a choice.
class OpenAiWriter : public AnswerWriter {
 public:
  // `chunk_object` is what a chunk calls itself.
  OpenAiWriter(UsageOptions usage, const char* chunk_object) : usage_(usage), chunk_object_(chunk_object) {}

  void append_end(std::string& out, const AnswerHead& head, const Usage& usage) override;
  void append_failure(std::string& out, const AnswerHead& head, const ApiError& error) override;
  void append_keep_alive(std::string& out, const AnswerHead& head, const Usage& usage) override;
  std::string_view last_event() const override { return "data: [DONE]\n\n"; }

 protected:
  void write_stream_usage(JsonWriter& json, const Usage& usage) const;

 private:
  const UsageOptions usage_;
  const char* const chunk_object_;
};

}  // namespace sparrow::openai
