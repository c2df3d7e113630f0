// SPDX-License-Identifier: Apache-2.0
// Answer: one output of a request, from the engine's events to what a client sees: ids become whole
// characters, reasoning, content and tool calls are told apart, and stop strings end the first two. Streamed
// and whole answers go through the same steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api/stop_strings.h"
#include "text/output/output_parser.h"
#include "text/tokenizer/detokenizer.h"

namespace sparrow {

struct AnswerOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  std::vector<int32_t> stop_ids;              // of the request: the answer names the one that ended it
  std::optional<OutputParserOptions> parser;  // nullopt: all text is content
  bool single_call = false;                   // the answer ends after its first tool call
};

class Answer {
 public:
  Answer(const Tokenizer& tokenizer, const AnswerOptions& options);

  // Takes one event; appends what has become certain. False: the answer has ended, and the engine need not go
  // on with this output.
  bool take(TokenEvent event, std::vector<OutputDelta>& deltas);

  bool finished() const { return finished_; }
  // "stop", "length" or "tool_calls"; after finished().
  const char* finish_reason() const;
  // Why it ended early: the engine's reason, if that was no ordinary end.
  std::optional<FinishReason> failure() const { return failure_; }
  const std::string& error() const { return error_; }
  // The stop string that ended it; empty: none.
  const std::string& stop_string() const { return stop_.found(); }
  // The request's stop id that did.
  std::optional<int32_t> stop_id() const { return stop_id_; }

  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_reasoning_tokens() const { return parser_ ? parser_->num_reasoning_chunks() : 0; }
  int64_t num_cached_tokens() const { return num_cached_tokens_; }
  // Of the tokens that came since the last call.
  std::vector<TokenLogprobs> take_logprobs() { return std::exchange(logprobs_, {}); }
  std::vector<TokenLogprobs>& prompt_logprobs() { return prompt_logprobs_; }

 private:
  bool stopped() const { return !stop_.found().empty(); }
  void feed(std::string_view text, std::vector<OutputDelta>& deltas);
  void show(std::vector<OutputDelta> parts, std::vector<OutputDelta>& deltas);  // until a stop string
  void show_held(std::vector<OutputDelta>& deltas);
  static void add(OutputDelta delta, std::vector<OutputDelta>& deltas);  // to the last, if it is of its kind
  void end(FinishReason reason, std::vector<OutputDelta>& deltas);

  Detokenizer detokenizer_;
  std::optional<OutputParser> parser_;
  StopStrings stop_;
  OutputDelta::Kind text_kind_ = OutputDelta::Kind::kContent;  // of what stop_ holds back
  bool has_call_ = false;
  std::vector<int32_t> stop_ids_;
  std::optional<int32_t> stop_id_;
  bool single_call_;
  bool finished_ = false;
  bool hit_length_ = false;
  std::optional<FinishReason> failure_;
  std::string error_;
  int64_t num_tokens_ = 0, num_cached_tokens_ = 0;
  std::vector<TokenLogprobs> logprobs_, prompt_logprobs_;
};

}  // namespace sparrow
