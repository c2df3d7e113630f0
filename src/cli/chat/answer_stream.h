// SPDX-License-Identifier: Apache-2.0
// AnswerStream: the body of a streamed answer, in pieces -> its parts as they come and, in the end, the
// message and what went wrong.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/json/json.h"
#include "cli/chat/conversation.h"

namespace sparrow::cli {

// One piece of an answer.
struct AnswerPart {
  enum class Kind : uint8_t { kReasoning, kContent, kCallName, kCallArguments };
  Kind kind;
  std::string_view text;
};

struct AnswerUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
};

class AnswerStream {
 public:
  explicit AnswerStream(std::function<void(const AnswerPart&)> on_part) : on_part_(std::move(on_part)) {}

  void feed(std::string_view bytes);
  // The body is over. Reads what is left of one that was no stream: an error's JSON.
  void finish();

  const Message& message() const { return message_; }
  // The server's own words; empty where it had none.
  const std::string& error() const { return error_; }
  // It said that the answer is over. Without that, it was cut.
  bool ended() const { return ended_; }
  const std::string& finish_reason() const { return finish_reason_; }
  const std::optional<AnswerUsage>& usage() const { return usage_; }

 private:
  void take_line(std::string_view line);
  void take_event(std::string_view json);
  void take_delta(const Json& delta);
  void take_call(const Json& call, size_t position);
  void take_usage(const Json& usage);
  void take_error(const Json& root);

  std::function<void(const AnswerPart&)> on_part_;
  std::string pending_;  // the start of a line
  std::string other_;    // a body that is no stream, so far
  bool is_stream_ = false;
  Message message_{.role = "assistant", .content = {}};
  std::string error_, finish_reason_;
  std::optional<AnswerUsage> usage_;
  bool ended_ = false;
};

}  // namespace sparrow::cli
