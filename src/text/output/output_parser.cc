// SPDX-License-Identifier: Apache-2.0
#include "text/output/output_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sparrow {

void ParsedOutput::add(const OutputDelta& delta) {
  if (delta.kind == OutputDelta::Kind::kReasoning) reasoning += delta.text;
  if (delta.kind == OutputDelta::Kind::kContent) content += delta.text;
  if (delta.kind != OutputDelta::Kind::kToolCall) return;
  const auto call = static_cast<size_t>(delta.call);
  if (tool_calls.size() <= call) tool_calls.resize(call + 1);
  tool_calls[call].name += delta.name;
  tool_calls[call].arguments += delta.text;
}

void ChunkCount::add_chunk(size_t bytes) {
  num_added_ += bytes;
  ends_.push_back(num_added_);
}

void ChunkCount::classify(size_t bytes, bool counts) {
  num_classified_ += bytes;
  while (!ends_.empty() && begin_ < num_classified_) {
    if (counts && !std::exchange(counted_, true)) ++count_;
    if (ends_.front() > num_classified_) return;
    begin_ = ends_.front();
    ends_.pop_front();
    counted_ = false;
  }
}

OutputParser::OutputParser(const OutputParserOptions& options)
    : options_(options),
      state_(options.parse_reasoning && options.starts_in_reasoning ? State::kReasoning : State::kText),
      segment_(options.parse_reasoning ? Segment::kAnswerStart : Segment::kFlowing),
      may_open_thinking_(options.parse_reasoning && !options.starts_in_reasoning),
      may_drop_closer_(may_open_thinking_) {}

void OutputParser::feed(std::string_view bytes, std::vector<OutputDelta>& out) {
  out_ = &out;
  std::string repaired;
  const std::string_view text = characters_.push(bytes, repaired);
  if (options_.parse_reasoning) reasoning_chunks_.add_chunk(text.size());
  if (pending_.empty()) return run(text);
  const std::string joined = std::exchange(pending_, {}).append(text);
  run(joined);
}

void OutputParser::finish(std::vector<OutputDelta>& out) {
  out_ = &out;
  final_ = true;
  std::string text = std::exchange(pending_, {});
  const std::string_view half_character = characters_.finish();
  // A call that breaks off keeps what is certain; what might have become markup or a character is not.
  if (state_ != State::kCall) run(text += half_character);
  if (segment_ == Segment::kAnswerStart) emit(OutputDelta::Kind::kContent, std::exchange(held_blanks_, {}));
}

void OutputParser::run(std::string_view input) {
  input_ = input;
  pos_ = next_angle_ = next_bracket_ = 0;
  while (pos_ < input_.size() && step()) {
  }
  pending_ = rest();
  input_ = {};
}

bool OutputParser::step() {
  switch (state_) {
    case State::kText:
      return step_text();
    case State::kReasoning:
      return step_reasoning();
    case State::kBlock:
      return step_block();
    case State::kCall:
      return step_call();
    case State::kRaw:
      emit(OutputDelta::Kind::kContent, rest());
      consume(rest().size());
      return true;
  }
  return false;
}

// Where the next first[0] followed by one of `second` is, or by nothing yet; the end of the input if nowhere.
// Remembered, so that a text full of one marker start and free of the other is not searched again and again.
size_t OutputParser::find_next(char first, std::string_view second, size_t& cached) const {
  if (cached > pos_) return cached - 1;
  size_t at = pos_;
  while (at < input_.size()) {
    const void* found = std::memchr(input_.data() + at, first, input_.size() - at);
    at = found ? static_cast<size_t>(static_cast<const char*>(found) - input_.data()) : input_.size();
    if (at + 1 >= input_.size() || second.find(input_[at + 1]) != second.npos) break;
    ++at;
  }
  cached = at + 1;
  return at;
}

size_t OutputParser::find_angle() {
  return find_next('<', "m/", next_angle_);
}
size_t OutputParser::find_bracket() {
  return find_next(kToolMarker[0], kToolMarker.substr(1, 1), next_bracket_);
}

void OutputParser::consume(size_t bytes, bool reasoning) {
  if (options_.parse_reasoning) reasoning_chunks_.classify(bytes, reasoning);
  pos_ += bytes;
}

void OutputParser::emit(OutputDelta::Kind kind, std::string_view text) {
  if (text.empty()) return;
  const int call = kind == OutputDelta::Kind::kToolCall ? num_calls_ - 1 : -1;
  if (out_->empty() || out_->back().kind != kind || out_->back().call != call)
    out_->push_back({.kind = kind, .call = call, .name = {}, .text = {}});
  out_->back().text += text;
}

void OutputParser::emit_content(std::string_view text) {
  if (segment_ != Segment::kFlowing) {
    if (is_blank(text)) {
      held_blanks_ += text;
      return;
    }
    emit(OutputDelta::Kind::kContent, std::exchange(held_blanks_, {}));
    segment_ = Segment::kFlowing;
    may_drop_closer_ = false;
  }
  emit(OutputDelta::Kind::kContent, text);
}

bool OutputParser::step_text() {
  size_t at = input_.size();
  if (may_open_thinking_ || may_drop_closer_) at = find_angle();
  if (options_.parse_tools) at = std::min(at, find_bracket());
  if (at > pos_) {
    emit_content(input_.substr(pos_, at - pos_));
    consume(at - pos_);
    return true;
  }
  return input_[at] == '<' ? text_at_angle() : text_at_bracket();
}

bool OutputParser::text_at_angle() {
  if (may_open_thinking_ && rest().starts_with(kThinkOpen)) {
    consume(kThinkOpen.size());
    enter_reasoning();
    return true;
  }
  if (may_drop_closer_ && rest().starts_with(kThinkClose)) {
    consume(kThinkClose.size());
    held_blanks_.clear();
    may_drop_closer_ = false;
    return true;
  }
  if (may_open_thinking_ && rest_may_become(kThinkOpen)) return false;
  if (may_drop_closer_ && rest_may_become(kThinkClose)) return false;
  emit_content(rest().substr(0, 1));
  consume(1);
  return true;
}

bool OutputParser::text_at_bracket() {
  if (!rest().starts_with(kToolMarker)) {
    if (rest_may_become(kToolMarker)) return false;
    emit_content(rest().substr(0, 1));
    consume(1);
    return true;
  }
  const TagScan scan = scan_tag(rest().substr(kToolMarker.size()));
  if (scan.match == TagMatch::kNeedMore && !final_) return false;
  if (scan.match == TagMatch::kTag && !scan.tag.closing && scan.tag.name == kToolCallTag) {
    enter_block(kToolMarker.size() + scan.length);
  } else {
    emit_content(kToolMarker);
    consume(kToolMarker.size());
  }
  return true;
}

void OutputParser::enter_reasoning() {
  held_blanks_.clear();
  segment_ = Segment::kFlowing;
  may_open_thinking_ = may_drop_closer_ = false;
  at_reasoning_start_ = true;
  state_ = State::kReasoning;
}

bool OutputParser::step_reasoning() {
  if (at_reasoning_start_) {
    if (rest().starts_with(kThinkOpen)) {  // written although the block is open already
      consume(kThinkOpen.size());
      return true;
    }
    if (rest_may_become(kThinkOpen)) return false;
    at_reasoning_start_ = false;
  }
  size_t text_bytes = find_angle() - pos_;
  if (text_bytes == 0) {
    if (rest().starts_with(kThinkClose)) {
      consume(kThinkClose.size());
      segment_ = Segment::kFlowing;
      state_ = State::kText;
      return true;
    }
    if (rest_may_become(kThinkClose)) return false;
    text_bytes = 1;
  }
  emit(OutputDelta::Kind::kReasoning, rest().substr(0, text_bytes));
  consume(text_bytes, /*reasoning=*/true);
  return true;
}

void OutputParser::enter_block(size_t tag_bytes) {
  if (segment_ == Segment::kAnswerStart) emit(OutputDelta::Kind::kContent, held_blanks_);
  held_blanks_.clear();
  may_drop_closer_ = false;
  block_raw_ = rest().substr(0, tag_bytes);
  block_has_call_ = false;
  state_ = State::kBlock;
  consume(tag_bytes);
}

// Between calls only tags mean anything.
bool OutputParser::step_block() {
  size_t text_bytes = find_bracket() - pos_;
  if (text_bytes == 0) {
    if (rest_may_become(kToolMarker)) return false;
    text_bytes = 1;
    if (rest().starts_with(kToolMarker)) {
      const TagScan scan = scan_tag(rest().substr(kToolMarker.size()));
      if (scan.match == TagMatch::kNeedMore && !final_) return false;
      text_bytes = kToolMarker.size();
      if (scan.match == TagMatch::kTag) {
        tag_in_block(scan.tag, kToolMarker.size() + scan.length);
        return true;
      }
    }
  }
  if (!block_has_call_) block_raw_ += rest().substr(0, text_bytes);
  consume(text_bytes);
  return true;
}

void OutputParser::tag_in_block(const ToolTag& tag, size_t tag_bytes) {
  if (!tag.closing && !tag.call_name.empty()) {
    enter_call(tag.call_name);
  } else if (tag.closing && tag.name == kToolCallTag) {
    segment_ = Segment::kAfterBlock;
    state_ = State::kText;
  } else {
    return give_up(std::exchange(block_raw_, {}));
  }
  block_raw_.clear();
  consume(tag_bytes);
}

void OutputParser::enter_call(std::string_view name) {
  block_has_call_ = true;
  arguments_.emplace(options_.tools ? options_.tools->parameters(name) : Schema());
  OutputDelta first{
      .kind = OutputDelta::Kind::kToolCall, .call = num_calls_++, .name = std::string(name), .text = {}};
  arguments_->begin(first.text);
  out_->push_back(std::move(first));
  state_ = State::kCall;
}

bool OutputParser::step_call() {
  size_t text_bytes = find_bracket() - pos_;
  if (text_bytes == 0) {
    if (rest_may_become(kToolMarker)) return false;
    text_bytes = 1;
    if (rest().starts_with(kToolMarker)) {
      const TagScan scan = scan_tag(rest().substr(kToolMarker.size()));
      if (scan.match == TagMatch::kTag) {
        tag_in_call(scan.tag, kToolMarker.size() + scan.length);
        return true;
      }
      if (scan.match == TagMatch::kNeedMore) return false;
      text_bytes = kToolMarker.size();
    }
  }
  std::string json;
  arguments_->text(rest().substr(0, text_bytes), json);
  emit(OutputDelta::Kind::kToolCall, json);
  consume(text_bytes);
  return true;
}

void OutputParser::tag_in_call(const ToolTag& tag, size_t tag_bytes) {
  const std::string_view raw = rest().substr(0, tag_bytes);
  std::string json;
  bool fits = false;
  if (tag.closing)
    fits = arguments_->close(tag.name, raw, json);
  else if (!tag.has_attributes || arguments_->in_string())  // else another call begins inside this one
    fits = arguments_->open(tag.name, raw, json);
  emit(OutputDelta::Kind::kToolCall, json);
  if (!fits) return give_up(arguments_->unsent());
  consume(tag_bytes);
  if (!arguments_->complete()) return;
  arguments_.reset();
  ++num_complete_calls_;
  state_ = State::kBlock;
}

// The markup makes no sense from here on: all that has not been sent is shown as it was written.
void OutputParser::give_up(const std::string& unsent) {
  arguments_.reset();
  segment_ = Segment::kFlowing;
  state_ = State::kRaw;
  emit(OutputDelta::Kind::kContent, unsent);
}

}  // namespace sparrow
