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
    std::string text;
    SPARROW_CHECK(detokenizer_.push(*event.id, text).ok());
    feed(text, deltas);
    if (stopped() || (single_call_ && parser_ && parser_->num_complete_calls() > 0))
      end(FinishReason::kStop, deltas);
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
  std::vector<OutputDelta> parts;
  if (parser_)
    parser_->feed(text, parts);
  else if (!text.empty())
    parts.push_back({.kind = OutputDelta::Kind::kContent, .call = -1, .name = {}, .text = std::string(text)});
  show(std::move(parts), deltas);
}

// Calls are no text, and no stop string reaches over one, nor from a thought into the answer.
void Answer::show(std::vector<OutputDelta> parts, std::vector<OutputDelta>& deltas) {
  for (OutputDelta& part : parts) {
    if (stopped()) return;
    const bool is_call = part.kind == OutputDelta::Kind::kToolCall;
    if (is_call || part.kind != text_kind_) show_held(deltas);
    if (is_call) {
      has_call_ = true;
    } else {
      text_kind_ = part.kind;
      std::string certain;
      stop_.feed(part.text, certain);
      part.text = std::move(certain);
    }
    add(std::move(part), deltas);
  }
}

void Answer::show_held(std::vector<OutputDelta>& deltas) {
  OutputDelta held{.kind = text_kind_, .call = -1, .name = {}, .text = {}};
  stop_.finish(held.text);
  add(std::move(held), deltas);
}

void Answer::add(OutputDelta delta, std::vector<OutputDelta>& deltas) {
  if (delta.text.empty() && delta.name.empty()) return;
  if (!deltas.empty() && delta.name.empty() && deltas.back().kind == delta.kind &&
      deltas.back().call == delta.call)
    deltas.back().text += delta.text;
  else
    deltas.push_back(std::move(delta));
}

void Answer::end(FinishReason reason, std::vector<OutputDelta>& deltas) {
  finished_ = true;
  std::string text;
  std::vector<OutputDelta> parts;
  detokenizer_.finish(text);
  feed(text, deltas);
  if (parser_) parser_->finish(parts);
  show(std::move(parts), deltas);
  if (!stopped()) show_held(deltas);
  hit_length_ = reason == FinishReason::kLength && !stopped();
  if (reason != FinishReason::kStop && reason != FinishReason::kLength) failure_ = reason;
}

const char* Answer::finish_reason() const {
  if (hit_length_) return "length";
  return has_call_ ? "tool_calls" : "stop";
}

}  // namespace sparrow
