// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/answer_stream.h"

#include <algorithm>

#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow::cli {
namespace {

constexpr size_t kMaxLineBytes = 64 << 20;
constexpr size_t kMaxOtherBytes = 1 << 20;
constexpr size_t kMaxCalls = 1024;
constexpr size_t kMaxErrorBytes = 1000;  // of a page that is no JSON

// The text of a member; empty where there is none.
std::string_view text_of(const Json& object, std::string_view key) {
  const auto member = object.find(key);
  // The document outlives the view, not the Json.
  return member ? member->string_view() : std::string_view();
}

}  // namespace

void AnswerStream::feed(std::string_view bytes) {
  pending_ += bytes;
  size_t start = 0;
  for (size_t end; (end = pending_.find('\n', start)) != std::string::npos; start = end + 1)
    take_line(std::string_view(pending_).substr(start, end - start));
  pending_.erase(0, start);
  if (pending_.size() <= kMaxLineBytes) return;
  error_ = "the server sent a line of more than 64 MiB";
  pending_.clear();
}

void AnswerStream::finish() {
  if (const std::string last = std::exchange(pending_, {}); !last.empty()) take_line(last);
  const std::string text = replace_invalid_utf8(other_);
  if (is_stream_ || text.empty()) return;
  if (const auto document = JsonDocument::parse(text, "answer"); document.ok())
    return take_error(document->root());
  if (error_.empty()) error_ = text.substr(0, std::min(text.find_last_not_of('\n') + 1, kMaxErrorBytes));
}

void AnswerStream::take_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with("data:")) {
    // In a stream these are comments, which keep the connection alive.
    if (!is_stream_ && other_.size() < kMaxOtherBytes) other_.append(line) += '\n';
    return;
  }
  is_stream_ = true;
  line.remove_prefix(5);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (line == "[DONE]")
    ended_ = true;
  else
    take_event(replace_invalid_utf8(line));
}

void AnswerStream::take_event(std::string_view json) {
  const auto document = JsonDocument::parse(json, "event");
  if (!document.ok()) {
    if (error_.empty())
      error_ = strf("the server sent something that is not JSON: {}", document.error().message);
    return;
  }
  const Json root = document->root();
  if (root.find("error")) return take_error(root);
  if (const auto usage = root.find("usage")) take_usage(*usage);
  const auto choices = root.find("choices");
  if (!choices || !choices->is_array() || choices->size() == 0) return;
  const Json choice = choices->element(0);
  if (const auto delta = choice.find("delta")) take_delta(*delta);
  if (const std::string_view reason = text_of(choice, "finish_reason"); !reason.empty()) {
    finish_reason_ = reason;
    ended_ = true;
  }
}

void AnswerStream::take_delta(const Json& delta) {
  std::string_view reasoning = text_of(delta, "reasoning_content");
  if (reasoning.empty()) reasoning = text_of(delta, "reasoning");  // its other name
  if (!reasoning.empty()) {
    message_.reasoning += reasoning;
    on_part_({AnswerPart::Kind::kReasoning, reasoning});
  }
  if (const std::string_view content = text_of(delta, "content"); !content.empty()) {
    message_.content += content;
    on_part_({AnswerPart::Kind::kContent, content});
  }
  const auto calls = delta.find("tool_calls");
  for (size_t i = 0; calls && calls->is_array() && i < calls->size(); ++i) take_call(calls->element(i), i);
}

void AnswerStream::take_call(const Json& call, size_t position) {
  const auto index = call.int_or("index", static_cast<int64_t>(position), 0, kMaxCalls - 1);
  if (!index.ok()) return;
  const auto at = static_cast<size_t>(index.value());
  if (message_.calls.size() <= at) message_.calls.resize(at + 1);
  ToolCall& known = message_.calls[at];
  known.id += text_of(call, "id");
  const auto function = call.find("function");
  if (!function) return;
  if (const std::string_view name = text_of(*function, "name"); !name.empty()) {
    known.name += name;
    on_part_({AnswerPart::Kind::kCallName, name});
  }
  if (const std::string_view arguments = text_of(*function, "arguments"); !arguments.empty()) {
    known.arguments += arguments;
    on_part_({AnswerPart::Kind::kCallArguments, arguments});
  }
}

void AnswerStream::take_usage(const Json& usage) {
  const auto count = [](const std::optional<Json>& object, std::string_view key) {
    const auto value = object ? object->int_or(key, 0, 0, int64_t{1} << 40) : Result<int64_t>(0);
    return value.ok() ? value.value() : 0;
  };
  usage_ =
      AnswerUsage{.prompt_tokens = count(usage, "prompt_tokens"),
                  .cached_tokens = count(usage.find("prompt_tokens_details"), "cached_tokens"),
                  .completion_tokens = count(usage, "completion_tokens"),
                  .reasoning_tokens = count(usage.find("completion_tokens_details"), "reasoning_tokens")};
}

void AnswerStream::take_error(const Json& root) {
  const auto error = root.find("error");
  if (!error) return;
  const std::string_view message = error->is_string() ? error->string_view() : text_of(*error, "message");
  error_ = message.empty() ? "the server refused" : std::string(message);
}

}  // namespace sparrow::cli
