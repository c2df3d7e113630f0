// SPDX-License-Identifier: Apache-2.0
#include "server/api/answer.h"

#include <algorithm>
#include <utility>

namespace sparrow {

Answer::Answer(const Tokenizer& tokenizer, const AnswerOptions& options)
    : detokenizer_(tokenizer),
      stop_(options.stop, options.include_stop),
      stop_ids_(options.stop_ids),
      single_call_(options.single_call) {
  if (options.parser) parser_.emplace(*options.parser);
}

bool Answer::take(TokenEvent event, std::vector<OutputDelta>& deltas) {
  if (finished_) return false;
  num_cached_tokens_ = std::max(num_cached_tokens_, event.cached_tokens);
  if (!event.prompt_logprobs.empty()) prompt_logprobs_ = std::move(event.prompt_logprobs);
  if (event.id) {
    ++num_tokens_;
    if (event.logprobs) logprobs_.push_back(std::move(*event.logprobs));
    std::string text, certain;
    SPARROW_CHECK(detokenizer_.push(*event.id, text).ok());
    const bool stopped = stop_.feed(text, certain);
    feed(certain, deltas);
    if (stopped) end(FinishReason::kStop, deltas);
    if (single_call_ && parser_ && parser_->num_complete_calls() > 0) end(FinishReason::kStop, deltas);
  }
  if (event.finish && !finished_) {
    if (event.finish == FinishReason::kStop && event.id &&
        std::find(stop_ids_.begin(), stop_ids_.end(), *event.id) != stop_ids_.end())
      stop_id_ = event.id;
    error_ = std::move(event.error);
    end(*event.finish, deltas);
  }
  return !finished_;
}

void Answer::feed(std::string_view text, std::vector<OutputDelta>& deltas) {
  if (parser_) return parser_->feed(text, deltas);
  if (text.empty()) return;
  deltas.push_back({.kind = OutputDelta::Kind::kContent, .call = -1, .name = {}, .text = std::string(text)});
}

void Answer::end(FinishReason reason, std::vector<OutputDelta>& deltas) {
  finished_ = true;
  hit_length_ = reason == FinishReason::kLength;
  if (reason != FinishReason::kStop && reason != FinishReason::kLength) failure_ = reason;
  if (stop_.found().empty()) {
    std::string text, certain;
    detokenizer_.finish(text);
    if (!stop_.feed(text, certain)) stop_.finish(certain);
    feed(certain, deltas);
  }
  if (parser_) parser_->finish(deltas);
}

const char* Answer::finish_reason() const {
  if (hit_length_) return "length";
  return parser_ && parser_->num_calls() > 0 ? "tool_calls" : "stop";
}

}  // namespace sparrow
