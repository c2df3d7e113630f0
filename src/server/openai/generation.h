// SPDX-License-Identifier: Apache-2.0
// Generation: the answers of one request as the engine's events come in, handed to the writer of its API.
// Knows nothing of sockets: the service pumps events in and bytes out.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/answer.h"
#include "server/api/writer.h"
#include "server/openai/prepare.h"

namespace sparrow::openai {

class Generation {
 public:
  // `request_id` makes the answer's id. The prepared request has been submitted, or is about to be.
  Generation(const ServedModel& model, std::unique_ptr<Prepared> prepared, std::string_view request_id);

  // Takes one event. False: its output has ended, and needs no more of them.
  bool take(TokenEvent event);
  bool finished() const { return num_finished_ == static_cast<int>(answers_.size()); }
  // An output that did not come to an ordinary end, and what to tell the client.
  std::optional<Error> failure() const;

  bool streams() const { return prepared_->fields.stream; }
  // Streams: appends the messages of what came since the last call; after the last event also the end. True:
  // `out` has `max_bytes`, and there is more.
  bool append_chunks(std::string& out, size_t max_bytes = JsonPieces::kAll);
  // What else a stream may need: the end of one that failed, a sign of life, and what closes it.
  void append_failure(std::string& out, const ApiError& error);
  void append_keep_alive(std::string& out);
  std::string_view last_event() const { return prepared_->writer->last_event(); }
  // Answers that are made in the background: see AnswerWriter.
  bool in_background() const { return prepared_->in_background; }
  Result<std::string> begun(bool is_running, const std::function<void()>& cancel) {
    return prepared_->writer->begun(head_, is_running, cancel);
  }
  void end_early(const std::optional<ApiError>& error) { prepared_->writer->end_early(head_, usage_, error); }
  // Whole answers, once finished: the next piece of about so many bytes; empty: that was all.
  std::string response(size_t bytes = JsonPieces::kAll);

  const Usage& usage() const { return usage_; }
  // Tokens and log-probabilities that the next append_chunks(), or response(), has to write: its cost.
  int64_t num_unwritten() const { return num_unwritten_; }
  // "stop", "length", ... of each output, after finished().
  std::vector<std::string> finish_reasons() const;

 private:
  struct Output {
    Answer answer;
    std::vector<OutputDelta> deltas;  // not sent yet
    std::vector<TokenLogprobs> logprobs;
    std::vector<int32_t> ids;             // not sent yet, with return_token_ids
    bool started = false, ended = false;  // the first, the last message was made
    bool dirty = false;
  };

  void count(const TokenEvent& event);
  void append_part(std::string& out, int index);
  void make_choices();

  std::unique_ptr<Prepared> prepared_;
  AnswerHead head_;
  std::vector<Output> answers_;
  int num_finished_ = 0;
  Usage usage_;
  int64_t num_unwritten_ = 0;
  bool end_sent_ = false;
  // Of a whole answer that is being written.
  std::vector<Choice> choices_;
  std::optional<JsonPieces> pieces_;
};

}  // namespace sparrow::openai
