// SPDX-License-Identifier: Apache-2.0
// Chat completions.
#include "server/openai/response.h"

#include <utility>

#include "base/strf.h"
#include "server/openai/response_parts.h"

namespace sparrow::openai {
namespace {

using Kind = OutputDelta::Kind;

void write_token(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprob& token) {
  json.key("token").string(token_text(tokenizer, token.id));
  json.key("logprob").number(token.logprob);
  json.key("bytes").begin_array();
  for (const char byte : tokenizer.bytes_of(token.id).value()) json.integer(static_cast<unsigned char>(byte));
  json.end_array();
}

void write_chat_entry(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprobs& entry) {
  json.begin_object();
  write_token(json, tokenizer, entry.token);
  json.key("top_logprobs").begin_array();
  for (const TokenLogprob& top : entry.top) {
    json.begin_object();
    write_token(json, tokenizer, top);
    json.end_object();
  }
  json.end_array().end_object();
}

void add_chat_logprobs(JsonPieces& out, const Tokenizer& tokenizer, bool wanted,
                       std::span<const TokenLogprobs> logprobs) {
  if (!wanted) return out.add([](JsonWriter& json) { json.key("logprobs").null(); });
  out.add([](JsonWriter& json) { json.key("logprobs").begin_object().key("content").begin_array(); });
  out.add_each(logprobs.size(), [&tokenizer, logprobs](JsonWriter& json, size_t i) {
    write_chat_entry(json, tokenizer, logprobs[i]);
  });
  out.add([](JsonWriter& json) { json.end_array().end_object(); });
}

void write_call_head(JsonWriter& json, const AnswerHead& head, int index, int call) {
  json.key("id").string(strf("call_{}_{}_{}", head.unique, index, call)).key("type").string("function");
}

void write_message(JsonWriter& json, const AnswerHead& head, int index, const ParsedOutput& output) {
  json.key("message").begin_object();
  json.key("role").string("assistant");
  // An answer that is nothing but calls or reasoning has no content.
  json.key("content");
  const bool has_other = !output.tool_calls.empty() || !output.reasoning.empty();
  output.content.empty() && has_other ? json.null() : json.string(output.content);
  json.key("refusal").null();
  write_string_or_null(json, "reasoning", output.reasoning);
  write_string_or_null(json, "reasoning_content", output.reasoning);
  if (!output.tool_calls.empty()) {
    json.key("tool_calls").begin_array();
    for (size_t i = 0; i < output.tool_calls.size(); ++i) {
      json.begin_object();
      write_call_head(json, head, index, static_cast<int>(i));
      json.key("function").begin_object().key("name").string(output.tool_calls[i].name);
      json.key("arguments").string(output.tool_calls[i].arguments).end_object().end_object();
    }
    json.end_array();
  }
  json.end_object();
}

void write_delta(JsonWriter& json, const AnswerHead& head, int index, const OutputDelta& delta) {
  json.key("delta").begin_object();
  switch (delta.kind) {
    case Kind::kContent:
      json.key("content").string(delta.text);
      break;
    case Kind::kReasoning:
      json.key("reasoning").string(delta.text).key("reasoning_content").string(delta.text);
      break;
    case Kind::kToolCall:
      json.key("tool_calls").begin_array().begin_object().key("index").integer(delta.call);
      if (!delta.name.empty()) write_call_head(json, head, index, delta.call);
      json.key("function").begin_object();
      if (!delta.name.empty()) json.key("name").string(delta.name);
      json.key("arguments").string(delta.text).end_object().end_object().end_array();
      break;
  }
  json.end_object();
}

class ChatWriter final : public OpenAiWriter {
 public:
  explicit ChatWriter(UsageOptions usage) : OpenAiWriter(usage, "chat.completion.chunk") {}

  std::string id_for(std::string_view request_id, std::string_view) const override {
    return strf("chatcmpl-{}", request_id);
  }
  void append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                   const Usage& usage) override;
  JsonPieces whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) override;

 private:
  template <typename WriteDelta>
  void append_chunk(std::string& out, const AnswerHead& head, const StreamPart& part, bool with_tokens,
                    std::string_view finish_reason, const Usage& usage, WriteDelta&& write_the_delta);
};

// One chat chunk; `write_the_delta` writes the choice's "delta".
template <typename WriteDelta>
void ChatWriter::append_chunk(std::string& out, const AnswerHead& head, const StreamPart& part,
                              bool with_tokens, std::string_view finish_reason, const Usage& usage,
                              WriteDelta&& write_the_delta) {
  JsonWriter json;
  write_head(json, head, "chat.completion.chunk");
  json.key("choices").begin_array().begin_object().key("index").integer(part.index);
  write_the_delta(json);
  json.key("logprobs");
  if (part.wants_logprobs && with_tokens) {
    json.begin_object().key("content").begin_array();
    for (const TokenLogprobs& entry : part.logprobs) write_chat_entry(json, *head.tokenizer, entry);
    json.end_array().end_object();
  } else {
    json.null();
  }
  write_string_or_null(json, "finish_reason", finish_reason);
  if (!finish_reason.empty()) write_stop_reason(json, part.stop_reason);
  if (with_tokens) write_ids(json, "token_ids", part.token_ids);
  json.end_object().end_array();
  write_ids(json, "prompt_token_ids", part.prompt_ids);
  write_stream_usage(json, usage);
  json.end_object();
  append_event(out, json.text());
}

JsonPieces ChatWriter::whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  JsonPieces out;
  add_head(out, head, "chat.completion");
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    out.add([&head, &choice, i](JsonWriter& json) {
      json.begin_object().key("index").integer(i);
      ParsedOutput output;
      for (const OutputDelta& delta : choice.deltas) output.add(delta);
      write_message(json, head, static_cast<int>(i), output);
    });
    add_chat_logprobs(out, *head.tokenizer, choice.wants_logprobs, choice.logprobs);
    out.add([&choice](JsonWriter& json) {
      json.key("finish_reason").string(choice.finish_reason);
      write_stop_reason(json, choice.stop_reason);
      write_ids(json, "token_ids", choice.token_ids);
      json.end_object();
    });
  }
  out.add([usage](JsonWriter& json) {
    json.end_array();
    write_usage(json, usage);
  });
  add_prompt_logprobs(out, *head.tokenizer, choices[0]);
  out.add([&choice = choices[0]](JsonWriter& json) {
    write_ids(json, "prompt_token_ids", choice.prompt_ids);
    json.end_object();
  });
  return out;
}

void ChatWriter::append_part(std::string& out, const AnswerHead& head, const StreamPart& whole_part,
                             const Usage& usage) {
  StreamPart part = whole_part;
  if (part.first)
    append_chunk(out, head, part, false, "", usage, [](JsonWriter& json) {
      json.key("delta").begin_object().key("role").string("assistant").key("content").string("").end_object();
    });
  part.prompt_ids.reset();
  // Log-probabilities and ids go with the first message of this step.
  bool tokens_due = !part.logprobs.empty() || (part.token_ids && !part.token_ids->empty());
  for (const OutputDelta& delta : part.deltas)
    append_chunk(out, head, part, std::exchange(tokens_due, false), "", usage,
                 [&](JsonWriter& json) { write_delta(json, head, part.index, delta); });
  if (part.finish_reason.empty() && !tokens_due) return;
  append_chunk(out, head, part, tokens_due, part.finish_reason, usage,
               [](JsonWriter& json) { json.key("delta").begin_object().end_object(); });
}

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(UsageOptions usage) {
  return std::make_unique<ChatWriter>(usage);
}

}  // namespace sparrow::openai
