// SPDX-License-Identifier: Apache-2.0
// Text completions.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/strf.h"
#include "base/utf8.h"
#include "server/openai/response_parts.h"

namespace sparrow::openai {
namespace {

// The name of a token in the maps of text completions, which tells all tokens apart: as OpenAI writes it, the
// bytes where they are not UTF-8.
std::string token_name(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.bytes_of(id).value();
  if (valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += strf("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
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

class CompletionWriter final : public OpenAiWriter {
 public:
  explicit CompletionWriter(UsageOptions usage) : OpenAiWriter(usage, "text_completion") {}

  std::string id_for(std::string_view request_id, std::string_view) const override {
    return strf("cmpl-{}", request_id);
  }
  void append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                   const Usage& usage) override;
  JsonPieces whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) override;

 private:
  std::map<int, int64_t> text_offsets_;  // of each choice: characters of the tokens that were written
};

void CompletionWriter::append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                                   const Usage& usage) {
  // Nothing new, and not the end: no chunk.
  const bool has_ids = part.token_ids && !part.token_ids->empty();
  if (part.echoed_ids.empty() && part.deltas.empty() && part.logprobs.empty() && !has_ids &&
      part.finish_reason.empty())
    return;
  std::string text(part.echoed_text);
  for (const OutputDelta& delta : part.deltas) text += delta.text;
  JsonPieces pieces;
  const auto offset = std::make_shared<int64_t>(text_offsets_[part.index]);
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
    write_stream_usage(json, usage);
    json.end_object();
  });
  append_event(out, pieces.next());
  text_offsets_[part.index] = *offset;
}

JsonPieces CompletionWriter::whole(const AnswerHead& head, std::span<const Choice> choices,
                                   const Usage& usage) {
  JsonPieces out;
  add_head(out, head, "text_completion");
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    out.add([&choice, i](JsonWriter& json) {
      json.begin_object().key("index").integer(i);
      std::string text(choice.echoed_text);
      for (const OutputDelta& delta : choice.deltas) text += delta.text;
      json.key("text").string(text);
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

}  // namespace

std::unique_ptr<AnswerWriter> make_completion_writer(UsageOptions usage) {
  return std::make_unique<CompletionWriter>(usage);
}

}  // namespace sparrow::openai
