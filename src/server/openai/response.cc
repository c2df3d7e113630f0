// SPDX-License-Identifier: Apache-2.0
#include "server/openai/response.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow::openai {
namespace {

using Kind = OutputDelta::Kind;

// The text of one token; what is not UTF-8 alone becomes U+FFFD, and its bytes are told beside it.
std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return tokenizer.decode(std::span(&id, 1)).value();
}

// The name of a token in the maps of text completions, which tells all tokens apart: as OpenAI writes it, the
// bytes where they are not UTF-8.
std::string token_name(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.bytes_of(id).value();
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += strf("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("prompt_tokens").integer(usage.prompt_tokens);
  json.key("completion_tokens").integer(usage.completion_tokens);
  json.key("total_tokens").integer(usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details")
      .begin_object()
      .key("cached_tokens")
      .integer(usage.cached_tokens)
      .end_object();
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

// Of valid UTF-8.
int64_t num_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// The tokens of a text completion, the echoed ones first.
struct CompletionTokens {
  std::span<const int32_t> echoed_ids;
  std::span<const TokenLogprobs> prompt_logprobs, logprobs;

  size_t size() const { return echoed_ids.size() + logprobs.size(); }
  // The first prompt token has no log-probability.
  const TokenLogprobs* entry(size_t i) const {
    if (i >= echoed_ids.size()) return &logprobs[i - echoed_ids.size()];
    return i > 0 && i <= prompt_logprobs.size() ? &prompt_logprobs[i - 1] : nullptr;
  }
  int32_t id(size_t i) const { return i < echoed_ids.size() ? echoed_ids[i] : entry(i)->token.id; }
};

void write_top_logprobs(JsonWriter& json, const Tokenizer& tokenizer, const TokenLogprobs* entry) {
  if (!entry) return static_cast<void>(json.null());
  json.begin_object();
  std::set<std::string> names;  // tokens that mean nothing have the same: the most probable one stands
  for (const TokenLogprob& top : entry->top)
    if (const auto [name, is_new] = names.insert(token_name(tokenizer, top.id)); is_new)
      json.key(*name).number(top.logprob);
  json.end_object();
}

// The four parallel lists. `offset` is that of the first token, and of what comes next once all is written.
void add_completion_logprobs(JsonPieces& out, const Tokenizer& tokenizer, bool wanted,
                             const CompletionTokens& tokens, const std::shared_ptr<int64_t>& offset) {
  if (!wanted) return out.add([](JsonWriter& json) { json.key("logprobs").null(); });
  const auto begin_list = [&out](const char* name) {
    out.add([name](JsonWriter& json) { json.key(name).begin_array(); });
  };
  const auto end_list = [&out] { out.add([](JsonWriter& json) { json.end_array(); }); };
  out.add([](JsonWriter& json) { json.key("logprobs").begin_object(); });
  begin_list("text_offset");
  out.add_each(tokens.size(), [&tokenizer, tokens, offset](JsonWriter& json, size_t i) {
    json.integer(*offset);
    *offset += num_characters(token_text(tokenizer, tokens.id(i)));
  });
  end_list();
  begin_list("token_logprobs");
  out.add_each(tokens.size(), [tokens](JsonWriter& json, size_t i) {
    const TokenLogprobs* const entry = tokens.entry(i);
    entry ? json.number(entry->token.logprob) : json.null();
  });
  end_list();
  begin_list("tokens");
  out.add_each(tokens.size(), [&tokenizer, tokens](JsonWriter& json, size_t i) {
    json.string(token_name(tokenizer, tokens.id(i)));
  });
  end_list();
  begin_list("top_logprobs");
  out.add_each(tokens.size(), [&tokenizer, tokens](JsonWriter& json, size_t i) {
    write_top_logprobs(json, tokenizer, tokens.entry(i));
  });
  end_list();
  out.add([](JsonWriter& json) { json.end_object(); });
}

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

// As vLLM writes them: null for the first token, then for each one a map from ids.
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

void write_call_head(JsonWriter& json, const AnswerHead& head, int index, int call) {
  json.key("id").string(strf("{}_{}_{}", head.call_ids, index, call)).key("type").string("function");
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

void write_stream_usage(JsonWriter& json, const AnswerHead& head, const Usage& usage) {
  if (head.continuous_usage) return write_usage(json, usage);
  if (head.include_usage) json.key("usage").null();
}

// One chat chunk; `write_the_delta` writes the choice's "delta".
template <typename WriteDelta>
void append_chat_chunk(std::string& out, const AnswerHead& head, const ChunkPart& part, bool with_tokens,
                       std::string_view finish_reason, const Usage& usage, WriteDelta&& write_the_delta) {
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
  write_stream_usage(json, head, usage);
  json.end_object();
  append_event(out, json.text());
}

}  // namespace

JsonPieces chat_response(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  JsonPieces out;
  add_head(out, head, "chat.completion");
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    out.add([&head, &choice, i](JsonWriter& json) {
      json.begin_object().key("index").integer(i);
      write_message(json, head, static_cast<int>(i), choice.output);
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

JsonPieces completion_response(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  JsonPieces out;
  add_head(out, head, "text_completion");
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    out.add([&choice, i](JsonWriter& json) {
      json.begin_object().key("index").integer(i);
      json.key("text").string(std::string(choice.echoed_text) + choice.output.content);
    });
    add_completion_logprobs(out, *head.tokenizer, choice.wants_logprobs,
                            {choice.echoed_ids, choice.prompt_logprobs, choice.logprobs},
                            std::make_shared<int64_t>(0));
    out.add([&choice](JsonWriter& json) {
      json.key("finish_reason").string(choice.finish_reason);
      write_stop_reason(json, choice.stop_reason);
    });
    add_prompt_logprobs(out, *head.tokenizer, choice);
    out.add([&choice](JsonWriter& json) {
      write_ids(json, "token_ids", choice.token_ids);
      write_ids(json, "prompt_token_ids", choice.prompt_ids);
      json.end_object();
    });
  }
  out.add([usage](JsonWriter& json) {
    json.end_array();
    write_usage(json, usage);
    json.end_object();
  });
  return out;
}

void append_chat_chunks(std::string& out, const AnswerHead& head, ChunkPart part, const Usage& usage) {
  if (part.first)
    append_chat_chunk(out, head, part, false, "", usage, [](JsonWriter& json) {
      json.key("delta").begin_object().key("role").string("assistant").key("content").string("").end_object();
    });
  part.prompt_ids.reset();
  // Log-probabilities and ids go with the first message of this step.
  bool tokens_due = !part.logprobs.empty() || (part.token_ids && !part.token_ids->empty());
  for (const OutputDelta& delta : part.deltas)
    append_chat_chunk(out, head, part, std::exchange(tokens_due, false), "", usage,
                      [&](JsonWriter& json) { write_delta(json, head, part.index, delta); });
  if (part.finish_reason.empty() && !tokens_due) return;
  append_chat_chunk(out, head, part, tokens_due, part.finish_reason, usage,
                    [](JsonWriter& json) { json.key("delta").begin_object().end_object(); });
}

int64_t append_completion_chunk(std::string& out, const AnswerHead& head, const ChunkPart& part,
                                const Usage& usage) {
  std::string text(part.echoed_text);
  for (const OutputDelta& delta : part.deltas) text += delta.text;
  JsonPieces pieces;
  const auto offset = std::make_shared<int64_t>(part.text_offset);
  add_head(pieces, head, "text_completion");
  pieces.add([&](JsonWriter& json) {
    json.begin_object().key("index").integer(part.index);
    json.key("text").string(text);
  });
  add_completion_logprobs(pieces, *head.tokenizer, part.wants_logprobs,
                          {part.echoed_ids, part.prompt_logprobs, part.logprobs}, offset);
  pieces.add([&](JsonWriter& json) {
    write_string_or_null(json, "finish_reason", part.finish_reason);
    write_stop_reason(json, part.stop_reason);
    write_ids(json, "token_ids", part.token_ids);
    write_ids(json, "prompt_token_ids", part.prompt_ids);
    json.end_object().end_array();
    write_stream_usage(json, head, usage);
    json.end_object();
  });
  append_event(out, pieces.next());
  return *offset;
}

void append_usage_chunk(std::string& out, const AnswerHead& head, bool chat, const Usage& usage) {
  JsonWriter json;
  write_head(json, head, chat ? "chat.completion.chunk" : "text_completion");
  json.key("choices").begin_array().end_array();
  write_usage(json, usage);
  json.end_object();
  append_event(out, json.text());
}

void append_event(std::string& out, std::string_view json) {
  out += "data: ";
  out += json;
  out += "\n\n";
}

}  // namespace sparrow::openai
