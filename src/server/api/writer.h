// SPDX-License-Identifier: Apache-2.0
// AnswerWriter: what an API makes of the answers of one request: the events of a stream, or one whole body.
// The API's reader makes it, because it knows what was asked for. One request, one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json_pieces.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/http/message/message.h"
#include "text/output/output_parser.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

struct Usage {
  int64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0;
  int64_t media_tokens = 0;  // of the prompt's: images and videos
};

// What all messages of one response have in common.
struct AnswerHead {
  std::string id;  // as the writer makes it
  int64_t created = 0;
  std::string model;
  std::string unique;  // random: no other answer has it
  const Tokenizer* tokenizer = nullptr;
};

// What of the request ended an answer: a string or an id of its own.
struct StopReason {
  std::string_view text;  // empty: none
  std::optional<int32_t> id;
};

// A finished choice.
struct Choice {
  std::vector<OutputDelta> deltas;  // neighbours of one kind are one
  std::string_view finish_reason;
  StopReason stop_reason;
  bool wants_logprobs = false;
  std::vector<TokenLogprobs> logprobs;
  bool wants_prompt_logprobs = false;
  // Borrowed: all choices of a prompt have the same.
  std::span<const TokenLogprobs> prompt_logprobs;
  // With return_token_ids, borrowed too.
  std::optional<std::span<const int32_t>> token_ids = {}, prompt_ids = {};
  // Of text completions with echo.
  std::string_view echoed_text;
  std::span<const int32_t> echoed_ids;
};

// What one choice of a stream has said since its last part.
struct StreamPart {
  int index = 0;
  bool first = false;  // of this choice
  std::span<const OutputDelta> deltas;
  std::span<const TokenLogprobs> logprobs;
  bool wants_logprobs = false;
  std::string_view finish_reason;  // empty: goes on
  StopReason stop_reason;
  // With return_token_ids.
  std::optional<std::span<const int32_t>> token_ids = {};
  std::optional<std::span<const int32_t>> prompt_ids = {};  // with the first part
  // Of text completions with echo, in the first part.
  std::string_view echoed_text = {};
  std::span<const int32_t> echoed_ids = {};
  std::span<const TokenLogprobs> prompt_logprobs = {};
};

class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  virtual std::string id_for(std::string_view request_id, std::string_view unique) const = 0;

  // Streams. Appends the events of a part; `usage` is that of all choices so far.
  virtual void append_part(std::string& out, const AnswerHead& head, const StreamPart& part,
                           const Usage& usage) = 0;
  // Once, after the last part of the last choice.
  virtual void append_end(std::string& out, const AnswerHead& head, const Usage& usage) = 0;
  // Instead of the end: what went wrong after the stream began.
  virtual void append_failure(std::string& out, const AnswerHead& head, const ApiError& error) = 0;
  // While there is nothing to say, so that nobody takes the stream for dead.
  virtual void append_keep_alive(std::string& out, const AnswerHead& head, const Usage& usage) = 0;
  // What closes a stream, however it ended.
  virtual std::string_view last_event() const = 0;

  // Of answers that are made in the background: what there is to say before the end (an error: there is no
  // room to keep it), and, instead of a whole answer, of one that failed, or that its client has cancelled
  // (no error).
  virtual Result<std::string> begun(const AnswerHead&, bool /*is_running*/,
                                    const std::function<void()>& /*cancel*/) {
    return std::string();
  }
  virtual void end_early(const AnswerHead&, const Usage&, const std::optional<ApiError>&) {}

  // A whole answer. Borrows the head and the choices.
  virtual JsonPieces whole(const AnswerHead& head, std::span<const Choice> choices, const Usage& usage) = 0;
};

}  // namespace sparrow
