// SPDX-License-Identifier: Apache-2.0
// CallGuide: the ids that lead from the start of an answer to a complete tool call. The model thinks as long
// as it likes, then writes one call or several of the tools it may use, each well-formed; what it writes
// between the tags of a value is its own. Made once for a request; a state of its own for each answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/output/tool_schema.h"
#include "text/tokenizer/tokenizer.h"

namespace sparrow {

struct CallGuideOptions {
  enum class Start {
    kThinking,  // the prompt ends inside a thinking block
    kOpen,      // the model decides whether it thinks
    kCall,      // it does not
  };

  std::vector<std::string> names;  // of the tools that may be called; at least one
  const ToolSet* tools = nullptr;  // what their parameters are called; borrowed while the guide is made
  int vocab_size = 0;              // the model's ids are below this
  bool several = false;            // calls in one answer
  Start start = Start::kOpen;
};

// Immutable; borrows the tokenizer.
class CallGuide {
 public:
  // Error: the model has no token for the marker of tool calls, or a tool's name cannot be written.
  static Result<CallGuide> create(const Tokenizer& tokenizer, const CallGuideOptions& options);

  // Where one answer stands.
  class State;

 private:
  // A text that may come next, as ids, and the element that it opens.
  struct Path {
    std::vector<int32_t> ids;
    int element;
    bool required = false;  // the parent may not be closed before
  };
  static constexpr int kClose = -1, kEndBlock = -2;  // in place of an element

  // An invoke, a parameter or a part of one. Of a parameter that nothing is said about, all is left open.
  struct Element {
    std::string name;
    std::vector<Path> paths;  // what may follow a marker here, sorted by ids
    bool repeats = false;     // children of the same name: an array
    bool any_names = false;   // children may be called anything
    int num_required = 0;
  };

  CallGuide(const Tokenizer& tokenizer, int vocab_size) : tokenizer_(&tokenizer), vocab_size_(vocab_size) {}
  std::optional<int32_t> id_of(std::string_view token) const;
  Result<Path> path(const std::string& text, int element) const;
  bool can_be_written(const Path& path) const;
  Status add_calls(const std::string& before, std::vector<Path>& paths) const;
  Status add_children(int parent, const Schema& schema, int depth);
  Status add_child(int parent, const std::string& name, const Schema& schema, int depth);

  const Tokenizer* tokenizer_;
  int vocab_size_;
  int32_t marker_ = 0;
  std::optional<int32_t> think_open_, think_close_;
  CallGuideOptions::Start start_ = CallGuideOptions::Start::kOpen;
  std::vector<Element> elements_;   // those of the tools first, in their order
  std::vector<std::string> names_;  // of the tools
  std::vector<Path> open_, go_on_;  // the first call, and after a call
};

// Engine thread; does little for one id.
class CallGuide::State {
 public:
  // The guide must outlive the state.
  explicit State(const CallGuide& guide);

  // Ids that may come next; empty: all. Until the next call of advance().
  std::span<const int32_t> allowed();
  // Some call is complete and the block is closed: nothing has to follow.
  bool done() const { return phase_ == Phase::kDone; }
  // No call can be completed any more: the markup is broken.
  bool lost() const { return phase_ == Phase::kLost; }
  void advance(int32_t id);

 private:
  enum class Phase { kStart, kThinking, kPath, kMarker, kValue, kTag, kDone, kLost };
  struct Frame {
    const Element* element;  // null: nothing is known about it
    std::string name;
    std::vector<bool> seen = {};  // of the element's paths
    int num_required = 0;         // that have not been there
  };

  void follow(std::span<const Path> paths);
  bool may_take(const Path& path) const;
  void take(const Path& path);
  void open(const Element* element, std::string_view name);
  void close();
  void read_tag();

  const CallGuide* guide_;
  Phase phase_;
  std::span<const Path> paths_;  // kPath: those that begin like the ids so far,
  size_t num_taken_ = 0;         // which are this many
  std::string text_;             // kThinking: the last of it; kTag: since the marker
  std::vector<Frame> frames_;    // open elements, the invoke first
  std::vector<int32_t> allowed_;
};

}  // namespace sparrow
