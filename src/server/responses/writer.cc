// SPDX-License-Identifier: Apache-2.0
// The writer: what the model says becomes items, one after the other, in streams and in whole answers alike.
#include <memory>
#include <utility>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "server/responses/items.h"
#include "server/responses/responses.h"
#include "server/responses/tools.h"

namespace sparrow::responses {
namespace {

using Kind = OutputDelta::Kind;

// One item of the output.
struct Item {
  Kind kind;
  int call = -1;         // the parser's number of a tool call
  ToolTable::Tool tool;  // that is called
  std::string text;      // or arguments
  bool is_whole = false;

  // The input of a custom tool is told as a whole: it is a text in the arguments.
  bool is_custom_call() const { return kind == Kind::kToolCall && tool.is_custom; }
};

// The last item goes on where a delta is of the same kind and, of calls, has the same number.
bool goes_on(const Item& item, const OutputDelta& delta) {
  return item.kind == delta.kind && item.call == delta.call;
}

std::string_view status_of(const Item& item, bool is_open) {
  return is_open ? "in_progress" : item.is_whole ? "completed" : "incomplete";
}

class Writer final : public AnswerWriter {
 public:
  explicit Writer(ResponseOptions options)
      : options_(std::move(options)), is_stored_(options_.store != nullptr) {}

  std::string id_for(std::string_view, std::string_view unique) const override {
    return strf("resp_{}", unique);
  }

  void append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                   const Usage& usage) override;
  void append_end(std::string& out, const AnswerHead& head, const Usage& usage) override;
  void append_failure(std::string& out, const AnswerHead& head, const ApiError& error) override;
  void append_keep_alive(std::string& out, const AnswerHead& head, const Usage& usage) override;
  std::string_view last_event() const override { return ""; }
  Result<std::string> begun(const AnswerHead& head, bool is_running,
                            const std::function<void()>& cancel) override;
  void end_early(const AnswerHead& head, const Usage& usage, const std::optional<ApiError>& error) override;
  JsonPieces whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) override;

 private:
  struct Ending {
    std::string_view status = "in_progress";
    const Usage* usage = nullptr;
    const ApiError* error = nullptr;
  };

  // Writes an event's own members.
  using WriteEvent = std::function<void(JsonWriter&)>;

  void append_event(std::string& out, std::string_view type, const WriteEvent& write);
  void append_item_event(std::string& out, std::string_view type, const AnswerHead& head,
                         const WriteEvent& write);
  void append_text_event(std::string& out, std::string_view type, const AnswerHead& head,
                         std::string_view member, std::string_view text);
  void begin(std::string& out, const AnswerHead& head);
  void add_item(const OutputDelta& delta);
  void open_item(std::string& out, const AnswerHead& head, const OutputDelta& delta);
  void close_item(std::string& out, const AnswerHead& head);
  void end_items(std::string_view finish_reason);
  Status keep(const AnswerHead& head, std::string body, std::function<void()> cancel = nullptr) const;
  std::string ended(const AnswerHead& head, const Ending& ending);

  std::string item_id(const AnswerHead& head, size_t index) const;
  void write_part(JsonWriter& json, const Item& item, std::string_view text) const;
  void write_item(JsonWriter& json, const AnswerHead& head, size_t index, bool is_open) const;
  void write_response(JsonWriter& json, const AnswerHead& head, const Ending& ending) const;

  const ResponseOptions options_;
  bool is_stored_;  // or will be, as far as is known
  std::vector<Item> items_;
  bool begun_ = false, is_open_ = false;  // the stream; its last item
  bool cut_off_ = false;                  // by max_output_tokens
  int64_t sequence_number_ = 0;
};

std::string Writer::item_id(const AnswerHead& head, size_t index) const {
  const Item& item = items_[index];
  return strf("{}_{}_{}",
              item.kind == Kind::kReasoning ? "rs"
              : item.kind == Kind::kContent ? "msg"
              : item.tool.is_custom         ? "ctc"
                                            : "fc",
              head.unique, index);
}

void Writer::write_part(JsonWriter& json, const Item& item, std::string_view text) const {
  json.begin_object();
  if (item.kind == Kind::kReasoning) {
    json.key("type").string("reasoning_text").key("text").string(text);
  } else {
    json.key("type").string("output_text").key("text").string(text);
    json.key("annotations").begin_array().end_array().key("logprobs").begin_array().end_array();
  }
  json.end_object();
}

// An open item is written as it began: empty.
void Writer::write_item(JsonWriter& json, const AnswerHead& head, size_t index, bool is_open) const {
  const Item& item = items_[index];
  const std::string id = item_id(head, index);
  json.begin_object().key("id").string(id);
  const auto content = [&] {
    json.key("content").begin_array();
    if (!is_open) write_part(json, item, item.text);
    json.end_array();
  };
  switch (item.kind) {
    case Kind::kReasoning:
      json.key("type").string("reasoning").key("summary").begin_array().end_array();
      content();
      json.key("encrypted_content");
      options_.packs_thoughts && !is_open ? json.string(packed_thought(item.text)) : json.null();
      break;
    case Kind::kContent:
      json.key("type").string("message").key("role").string("assistant");
      content();
      break;
    case Kind::kToolCall:
      json.key("type").string(item.tool.is_custom ? "custom_tool_call" : "function_call");
      json.key("call_id").string(strf("call_{}_0_{}", head.unique, item.call));
      json.key("name").string(item.tool.name);
      if (!item.tool.space.empty()) json.key("namespace").string(item.tool.space);
      if (item.tool.is_custom) {
        json.key("input").string(is_open ? "" : custom_input(item.text));
      } else {
        json.key("arguments").string(is_open ? "" : item.text);
      }
      break;
  }
  json.key("status").string(status_of(item, is_open)).end_object();
}

void Writer::write_response(JsonWriter& json, const AnswerHead& head, const Ending& ending) const {
  json.begin_object().key("id").string(head.id).key("object").string("response");
  json.key("created_at").integer(head.created).key("status").string(ending.status);
  json.key("error");
  if (ending.error) {
    json.begin_object().key("code").string("server_error");
    json.key("message").string(ending.error->message).end_object();
  } else {
    json.null();
  }
  json.key("incomplete_details");
  if (ending.status == "incomplete") {
    json.begin_object().key("reason").string("max_output_tokens").end_object();
  } else {
    json.null();
  }
  json.key("model").string(head.model).key("output").begin_array();
  if (ending.status != "in_progress" && ending.status != "queued")
    for (size_t i = 0; i < items_.size(); ++i) write_item(json, head, i, false);
  json.end_array();
  for (const auto& [name, value] : options_.echoes) json.key(name).raw(value);
  json.key("store").boolean(is_stored_);
  json.key("usage");
  if (const Usage* const usage = ending.usage) {
    json.begin_object().key("input_tokens").integer(usage->prompt_tokens);
    json.key("input_tokens_details").begin_object().key("cached_tokens").integer(usage->cached_tokens);
    json.key("cache_write_tokens").integer(0);
    if (usage->media_tokens > 0) json.key("image_tokens").integer(usage->media_tokens);
    json.end_object().key("output_tokens").integer(usage->completion_tokens);
    json.key("output_tokens_details").begin_object();
    json.key("reasoning_tokens").integer(usage->reasoning_tokens).end_object();
    json.key("total_tokens").integer(usage->prompt_tokens + usage->completion_tokens).end_object();
  } else {
    json.null();
  }
  json.end_object();
}

void Writer::append_event(std::string& out, std::string_view type, const WriteEvent& write) {
  JsonWriter json;
  json.begin_object().key("type").string(type);
  json.key("sequence_number").integer(sequence_number_++);
  write(json);
  json.end_object();
  out += strf("event: {}\ndata: {}\n\n", type, json.text());
}

// Of the last item.
void Writer::append_item_event(std::string& out, std::string_view type, const AnswerHead& head,
                               const WriteEvent& write) {
  append_event(out, type, [&](JsonWriter& json) {
    json.key("output_index").integer(items_.size() - 1);
    json.key("item_id").string(item_id(head, items_.size() - 1));
    write(json);
  });
}

void Writer::append_text_event(std::string& out, std::string_view type, const AnswerHead& head,
                               std::string_view member, std::string_view text) {
  const Kind kind = items_.back().kind;
  append_item_event(out, type, head, [&](JsonWriter& json) {
    if (kind != Kind::kToolCall) json.key("content_index").integer(0);
    if (kind == Kind::kContent) json.key("logprobs").begin_array().end_array();
    if (member == "arguments") json.key("name").string(items_.back().tool.name);
    json.key(member).string(text);
  });
}

void Writer::begin(std::string& out, const AnswerHead& head) {
  if (std::exchange(begun_, true)) return;
  for (const char* type : {"response.created", "response.in_progress"})
    append_event(out, type, [&](JsonWriter& json) { write_response(json.key("response"), head, {}); });
}

void Writer::add_item(const OutputDelta& delta) {
  items_.push_back(
      {.kind = delta.kind, .call = delta.call, .tool = options_.tools.find(delta.name), .text = ""});
}

void Writer::open_item(std::string& out, const AnswerHead& head, const OutputDelta& delta) {
  add_item(delta);
  is_open_ = true;
  const size_t index = items_.size() - 1;
  append_event(out, "response.output_item.added", [&](JsonWriter& json) {
    json.key("output_index").integer(index);
    write_item(json.key("item"), head, index, true);
  });
  if (delta.kind == Kind::kToolCall) return;
  append_item_event(out, "response.content_part.added", head, [&](JsonWriter& json) {
    write_part(json.key("content_index").integer(0).key("part"), items_.back(), "");
  });
}

void Writer::close_item(std::string& out, const AnswerHead& head) {
  if (!std::exchange(is_open_, false)) return;
  const Item& item = items_.back();
  if (item.is_custom_call()) {
    const std::string input = custom_input(item.text);
    append_text_event(out, "response.custom_tool_call_input.delta", head, "delta", input);
    append_text_event(out, "response.custom_tool_call_input.done", head, "input", input);
  } else if (item.kind == Kind::kToolCall) {
    append_text_event(out, "response.function_call_arguments.done", head, "arguments", item.text);
  } else {
    append_text_event(
        out, item.kind == Kind::kReasoning ? "response.reasoning_text.done" : "response.output_text.done",
        head, "text", item.text);
    append_item_event(out, "response.content_part.done", head, [&](JsonWriter& json) {
      write_part(json.key("content_index").integer(0).key("part"), item, item.text);
    });
  }
  append_event(out, "response.output_item.done", [&](JsonWriter& json) {
    json.key("output_index").integer(items_.size() - 1);
    write_item(json.key("item"), head, items_.size() - 1, false);
  });
}

// The answer has ended: whatever came last is whole, unless there was no room for more.
void Writer::end_items(std::string_view finish_reason) {
  cut_off_ = finish_reason == "length";
  if (!items_.empty()) items_.back().is_whole = !cut_off_;
}

void Writer::append_part(std::string& out, const AnswerHead& head, const StreamPart& part, const Usage&) {
  begin(out, head);
  for (const OutputDelta& delta : part.deltas) {
    if (!is_open_ || !goes_on(items_.back(), delta)) {
      if (is_open_) items_.back().is_whole = true;
      close_item(out, head);
      open_item(out, head, delta);
    }
    Item& item = items_.back();
    item.text += delta.text;
    if (delta.text.empty() || item.is_custom_call()) continue;
    append_text_event(out,
                      item.kind == Kind::kReasoning  ? "response.reasoning_text.delta"
                      : item.kind == Kind::kToolCall ? "response.function_call_arguments.delta"
                                                     : "response.output_text.delta",
                      head, "delta", delta.text);
  }
  if (part.finish_reason.empty()) return;
  end_items(part.finish_reason);
  close_item(out, head);
}

// The response as it ended, or as it stands while it can be cancelled.
Status Writer::keep(const AnswerHead& head, std::string body, std::function<void()> cancel) const {
  if (!is_stored_) return Ok{};
  auto stored = std::make_shared<StoredResponse>();
  stored->id = head.id;
  stored->body = std::move(body);
  stored->input = options_.input;
  stored->cancel = std::move(cancel);
  for (size_t i = 0; i < items_.size(); ++i) {
    JsonWriter json;
    write_item(json, head, i, false);
    stored->output.push_back(std::make_shared<const std::string>(json.take()));
  }
  return options_.store->add(options_.key, std::move(stored));
}

// The response, which says whether it could be stored.
std::string Writer::ended(const AnswerHead& head, const Ending& ending) {
  JsonWriter response;
  write_response(response, head, ending);
  if (keep(head, response.text()).ok()) return response.take();
  is_stored_ = false;
  return ended(head, ending);
}

void Writer::append_end(std::string& out, const AnswerHead& head, const Usage& usage) {
  const std::string response =
      ended(head, {.status = cut_off_ ? "incomplete" : "completed", .usage = &usage});
  append_event(out, cut_off_ ? "response.incomplete" : "response.completed",
               [&](JsonWriter& json) { json.key("response").raw(response); });
}

Result<std::string> Writer::begun(const AnswerHead& head, bool is_running,
                                  const std::function<void()>& cancel) {
  JsonWriter response;
  write_response(response, head, {.status = is_running ? "in_progress" : "queued"});
  SPARROW_TRY(keep(head, response.text(), cancel));
  return response.take();
}

void Writer::end_early(const AnswerHead& head, const Usage& usage, const std::optional<ApiError>& error) {
  ended(head,
        {.status = error ? "failed" : "cancelled", .usage = &usage, .error = error ? &*error : nullptr});
}

void Writer::append_failure(std::string& out, const AnswerHead& head, const ApiError& error) {
  begin(out, head);
  append_event(out, "response.failed", [&](JsonWriter& json) {
    write_response(json.key("response"), head, {.status = "failed", .error = &error});
  });
}

void Writer::append_keep_alive(std::string& out, const AnswerHead& head, const Usage&) {
  begin(out, head);
  out += ": keep-alive\n\n";
}

JsonPieces Writer::whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) {
  for (const OutputDelta& delta : choices[0].deltas) {
    if (items_.empty() || !goes_on(items_.back(), delta)) {
      if (!items_.empty()) items_.back().is_whole = true;
      add_item(delta);
    }
    items_.back().text += delta.text;
  }
  end_items(choices[0].finish_reason);
  std::string response = ended(head, {.status = cut_off_ ? "incomplete" : "completed", .usage = &usage});
  JsonPieces out;
  out.add([body = std::move(response)](JsonWriter& json) { json.raw(body); });
  return out;
}

}  // namespace

std::unique_ptr<AnswerWriter> make_writer(ResponseOptions options) {
  return std::make_unique<Writer>(std::move(options));
}

}  // namespace sparrow::responses
