// SPDX-License-Identifier: Apache-2.0
// OutputParser: the bytes a model generates -> reasoning, content and tool calls. One state machine for
// streaming and for whole answers: however the bytes are cut into chunks, the deltas add up to the same
// result. Markers never get into any of the three unless the model used them as plain text. One answer, one
// thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/output/tool_arguments.h"
#include "text/output/tool_markup.h"
#include "text/output/tool_schema.h"

namespace sparrow {

inline constexpr std::string_view kThinkOpen = "<mm:think>";
inline constexpr std::string_view kThinkClose = "</mm:think>";

struct OutputParserOptions {
  bool parse_reasoning = true;       // off: thinking tags are text
  bool starts_in_reasoning = false;  // the prompt ends with kThinkOpen
  bool parse_tools = true;           // off: tool markup is text
  const ToolSet* tools = nullptr;    // borrowed; null types every argument as unknown
};

// Always whole UTF-8 characters; bytes that are none have become U+FFFD.
struct OutputDelta {
  enum class Kind { kReasoning, kContent, kToolCall };
  Kind kind;
  int call = -1;     // index of the tool call
  std::string name;  // only in the first delta of a call
  std::string text;  // of a tool call: the next piece of the JSON of its arguments

  bool operator==(const OutputDelta&) const = default;
};

struct ParsedToolCall {
  std::string name, arguments;
  bool operator==(const ParsedToolCall&) const = default;
};

// What the deltas add up to.
struct ParsedOutput {
  std::string reasoning, content;
  std::vector<ParsedToolCall> tool_calls;

  void add(const OutputDelta& delta);
  bool operator==(const ParsedOutput&) const = default;
};

// Counts the chunks that hold at least one byte of interest, when what a byte is turns out only after its
// chunk has come.
class ChunkCount {
 public:
  void add_chunk(size_t bytes);
  void classify(size_t bytes, bool counts);  // the next bytes, in order
  int64_t count() const { return count_; }

 private:
  std::deque<size_t> ends_;  // of the chunks that have bytes not classified yet, or none at all
  size_t begin_ = 0;         // of the first of them
  bool counted_ = false;     // the first of them
  size_t num_added_ = 0, num_classified_ = 0;
  int64_t count_ = 0;
};

class OutputParser {
 public:
  explicit OutputParser(const OutputParserOptions& options);

  // Appends what has become certain.
  void feed(std::string_view bytes, std::vector<OutputDelta>& out);
  // The answer is over: appends what was held back. A call that is still open stays unclosed, with what was
  // certain.
  void finish(std::vector<OutputDelta>& out);

  int num_calls() const { return num_calls_; }
  // Calls whose arguments are whole; fewer than num_calls() where one broke off.
  int num_complete_calls() const { return num_complete_calls_; }
  // Of the calls of feed(), those that brought at least one byte of reasoning. With one call for each token
  // this counts the reasoning tokens, tags not included. A token that brings no bytes yet counts with the
  // byte that comes next.
  int64_t num_reasoning_chunks() const { return reasoning_chunks_.count(); }

 private:
  enum class State { kText, kReasoning, kBlock, kCall, kRaw };
  // Text that is blank as yet is held back, because what follows decides whether it is dropped.
  enum class Segment { kAnswerStart, kAfterBlock, kFlowing };

  void run(std::string_view input);
  bool step();  // false: nothing more can be decided about the rest
  bool step_text();
  bool step_reasoning();
  bool step_block();
  bool step_call();
  bool text_at_angle();
  bool text_at_bracket();
  void enter_reasoning();
  void enter_block(size_t tag_bytes);
  void enter_call(std::string_view name);
  void tag_in_block(const ToolTag& tag, size_t tag_bytes);
  void tag_in_call(const ToolTag& tag, size_t tag_bytes);
  void give_up(const std::string& unsent);

  std::string_view rest() const { return input_.substr(pos_); }
  bool rest_may_become(std::string_view marker) const { return !final_ && marker.starts_with(rest()); }
  size_t find_next(char first, std::string_view second, size_t& cached) const;
  size_t find_angle();
  size_t find_bracket();
  void consume(size_t bytes, bool reasoning = false);
  void emit(OutputDelta::Kind kind, std::string_view text);
  void emit_content(std::string_view text);

  OutputParserOptions options_;
  State state_;
  Segment segment_ = Segment::kAnswerStart;
  std::string held_blanks_;
  bool may_open_thinking_;  // a thinking block has not been there yet
  bool may_drop_closer_;    // nothing but blanks before a closing tag that has no opening one
  bool at_reasoning_start_ = true;
  bool final_ = false;  // no more input comes: what could begin a marker is text

  Utf8Stream characters_;
  std::string pending_;     // text that could begin a marker
  std::string_view input_;  // what run() works on
  size_t pos_ = 0;
  size_t next_angle_ = 0,
         next_bracket_ = 0;  // one past the next that may begin a marker; stale when not after pos_

  std::string block_raw_;  // the block so far, until its first call
  bool block_has_call_ = false;
  std::optional<ToolArguments> arguments_;
  int num_calls_ = 0, num_complete_calls_ = 0;

  ChunkCount reasoning_chunks_;
  std::vector<OutputDelta>* out_ = nullptr;  // during feed() and finish()
};

}  // namespace sparrow
