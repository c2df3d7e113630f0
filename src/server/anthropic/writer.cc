// SPDX-License-Identifier: Apache-2.0
// The writer: what the model says becomes content blocks, one after the other, in streams and in whole
// answers alike.
#include <openssl/sha.h>

#include <functional>
#include <utility>

#include "base/json/json.h"
#include "base/json/json_writer.h"
#include "base/strf.h"
#include "base/text/base64.h"
#include "server/anthropic/messages.h"
#include "server/api/errors.h"

namespace sparrow::anthropic {
namespace {

using Kind = OutputDelta::Kind;

// Clients send it back with the thought, and some refuse a thought without one. It says nothing but that the
// text is what it was.
std::string signature_of(std::string_view thought) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(thought.data()), thought.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return to_base64(hash);
}

struct StopWords {
  std::string_view reason, sequence;  // empty: null
};

StopWords stop_words(std::string_view finish_reason, const StopReason& reason) {
  if (!reason.text.empty()) return {"stop_sequence", reason.text};
  if (finish_reason == "length") return {"max_tokens", ""};
  return {finish_reason == "tool_calls" ? "tool_use" : "end_turn", ""};
}

void write_stop(JsonWriter& json, const StopWords& stop) {
  json.key("stop_reason");
  stop.reason.empty() ? json.null() : json.string(stop.reason);
  json.key("stop_sequence");
  stop.sequence.empty() ? json.null() : json.string(stop.sequence);
}

// Tokens from the cache are counted apart.
void write_usage(JsonWriter& json, const Usage& usage) {
  json.key("usage").begin_object();
  json.key("input_tokens").integer(usage.prompt_tokens - usage.cached_tokens);
  json.key("cache_creation_input_tokens").integer(0);
  json.key("cache_read_input_tokens").integer(usage.cached_tokens);
  json.key("output_tokens").integer(usage.completion_tokens);
  json.key("output_tokens_details").begin_object();
  json.key("thinking_tokens").integer(usage.reasoning_tokens).end_object();
  json.end_object();
}

std::string call_id(const AnswerHead& head, int call) {
  return strf("toolu_{}_{}", head.unique, call);
}

void append_event(std::string& out, std::string_view type, const std::function<void(JsonWriter&)>& write) {
  JsonWriter json;
  json.begin_object().key("type").string(type);
  write(json);
  json.end_object();
  out += strf("event: {}\ndata: {}\n\n", type, json.text());
}

// The opening of a message, up to its content.
void write_head(JsonWriter& json, const AnswerHead& head) {
  json.begin_object().key("id").string(head.id).key("type").string("message");
  json.key("role").string("assistant").key("model").string(head.model).key("content").begin_array();
}

// The input of a call, from the text of it.
void write_input(JsonWriter& json, const std::string& arguments) {
  if (JsonDocument::parse(arguments, "arguments").ok()) {
    json.raw(arguments);
  } else {
    json.begin_object().key(kInvalidJson).string(arguments).end_object();
  }
}

class Writer final : public AnswerWriter {
 public:
  std::string id_for(std::string_view, std::string_view unique) const override {
    return strf("msg_{}", unique);
  }

  void append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                   const Usage& usage) override;
  void append_end(std::string& out, const AnswerHead& head, const Usage& usage) override;
  void append_failure(std::string& out, const AnswerHead& head, const ApiError& error) override;
  void append_keep_alive(std::string& out, const AnswerHead& head, const Usage& usage) override;
  std::string_view last_event() const override { return ""; }
  JsonPieces whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) override;

 private:
  void begin(std::string& out, const AnswerHead& head, const Usage& usage);
  void open_block(std::string& out, const AnswerHead& head, const OutputDelta& delta);
  void close_block(std::string& out);
  void append_delta(std::string& out, std::string_view type, std::string_view member, std::string_view text);

  bool begun_ = false;
  std::optional<OutputDelta> block_;  // the open one: its kind and call, and of a thought the text
  int num_blocks_ = 0;
  StopWords stop_;
  std::string stop_sequence_;  // of stop_
};

void Writer::begin(std::string& out, const AnswerHead& head, const Usage& usage) {
  if (std::exchange(begun_, true)) return;
  append_event(out, "message_start", [&](JsonWriter& json) {
    write_head(json.key("message"), head);
    json.end_array();
    write_stop(json, {});
    write_usage(json, usage);
    json.end_object();
  });
}

void Writer::open_block(std::string& out, const AnswerHead& head, const OutputDelta& delta) {
  block_ = OutputDelta{.kind = delta.kind, .call = delta.call, .name = {}, .text = {}};
  append_event(out, "content_block_start", [&](JsonWriter& json) {
    json.key("index").integer(num_blocks_).key("content_block").begin_object();
    switch (delta.kind) {
      case Kind::kReasoning:
        json.key("type").string("thinking").key("thinking").string("").key("signature").string("");
        break;
      case Kind::kContent:
        json.key("type").string("text").key("text").string("");
        break;
      case Kind::kToolCall:
        json.key("type").string("tool_use").key("id").string(call_id(head, delta.call));
        json.key("name").string(delta.name).key("input").begin_object().end_object();
        break;
    }
    json.end_object();
  });
}

void Writer::append_delta(std::string& out, std::string_view type, std::string_view member,
                          std::string_view text) {
  append_event(out, "content_block_delta", [&](JsonWriter& json) {
    json.key("index").integer(num_blocks_).key("delta").begin_object();
    json.key("type").string(type).key(member).string(text).end_object();
  });
}

void Writer::close_block(std::string& out) {
  if (!block_) return;
  if (block_->kind == Kind::kReasoning)
    append_delta(out, "signature_delta", "signature", signature_of(block_->text));
  append_event(out, "content_block_stop", [&](JsonWriter& json) { json.key("index").integer(num_blocks_); });
  ++num_blocks_;
  block_.reset();
}

void Writer::append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                         const Usage& usage) {
  begin(out, head, usage);
  for (const OutputDelta& delta : part.deltas) {
    if (!block_ || block_->kind != delta.kind || block_->call != delta.call) {
      close_block(out);
      open_block(out, head, delta);
    }
    if (delta.text.empty()) continue;
    if (delta.kind == Kind::kReasoning) {
      block_->text += delta.text;
      append_delta(out, "thinking_delta", "thinking", delta.text);
    } else if (delta.kind == Kind::kContent) {
      append_delta(out, "text_delta", "text", delta.text);
    } else {
      append_delta(out, "input_json_delta", "partial_json", delta.text);
    }
  }
  if (part.finish_reason.empty()) return;
  close_block(out);
  stop_ = stop_words(part.finish_reason, part.stop_reason);
  stop_sequence_ = stop_.sequence;
  stop_.sequence = stop_sequence_;
}

void Writer::append_end(std::string& out, const AnswerHead&, const Usage& usage) {
  append_event(out, "message_delta", [&](JsonWriter& json) {
    json.key("delta").begin_object();
    write_stop(json, stop_);
    json.end_object();
    write_usage(json, usage);
  });
  append_event(out, "message_stop", [](JsonWriter&) {});
}

void Writer::append_failure(std::string& out, const AnswerHead& head, const ApiError& error) {
  out += strf("event: error\ndata: {}\n\n", anthropic_error_json(error, head.id));
}

void Writer::append_keep_alive(std::string& out, const AnswerHead& head, const Usage& usage) {
  begin(out, head, usage);
  append_event(out, "ping", [](JsonWriter&) {});
}

void write_block(JsonWriter& json, const AnswerHead& head, const OutputDelta& block) {
  json.begin_object();
  switch (block.kind) {
    case Kind::kReasoning:
      json.key("type").string("thinking").key("thinking").string(block.text);
      json.key("signature").string(signature_of(block.text));
      break;
    case Kind::kContent:
      json.key("type").string("text").key("text").string(block.text);
      break;
    case Kind::kToolCall:
      json.key("type").string("tool_use").key("id").string(call_id(head, block.call));
      json.key("name").string(block.name);
      write_input(json.key("input"), block.text);
      break;
  }
  json.end_object();
}

JsonPieces Writer::whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  JsonPieces out;
  out.add([&head, &choice = choices[0], usage](JsonWriter& json) {
    write_head(json, head);
    for (const OutputDelta& delta : choice.deltas) write_block(json, head, delta);
    json.end_array();
    write_stop(json, stop_words(choice.finish_reason, choice.stop_reason));
    write_usage(json, usage);
    json.end_object();
  });
  return out;
}

}  // namespace

std::unique_ptr<AnswerWriter> make_writer() {
  return std::make_unique<Writer>();
}

}  // namespace sparrow::anthropic
