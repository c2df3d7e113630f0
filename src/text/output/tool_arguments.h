// SPDX-License-Identifier: Apache-2.0
// The arguments of one tool call, from the elements inside an invoke to JSON text, each piece as soon as no
// later input can change it. What has been written is never taken back: a call that breaks off leaves its
// JSON unclosed.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/output/tool_schema.h"
#include "text/output/tool_value.h"

namespace sparrow {

class ToolArguments {
 public:
  // Schema of the object that holds all parameters.
  explicit ToolArguments(const Schema& parameters);

  // The opening brace; before all else.
  void begin(std::string& json);

  // Each appends to `json` what has become certain. `raw` is the tag as it was written.
  void text(std::string_view text, std::string& json);
  bool open(std::string_view name, std::string_view raw, std::string& json);  // false: nested too deep
  bool close(std::string_view name, std::string_view raw,
             std::string& json);  // false: another element is open

  // The invoke itself has been closed.
  bool complete() const { return frames_.empty(); }
  // The innermost value is a string, or is one if markup follows: what is balanced of it belongs to its text.
  bool in_string() const;
  // What has been read of values that are not in the JSON yet.
  std::string unsent() const;

 private:
  enum class Mode {
    kUndecided,  // only text so far, not known of which type
    kString,     // its text streams
    kMarkedUp,   // a string that has elements in it; kept back until they turn out to be balanced
    kObject,     // its members stream
    kArray,      // its elements stream
    kTree,       // what it becomes depends on all of its children
    kRepeated,   // a member that was there before; skipped
  };
  struct Frame {
    std::string name;
    Mode mode = Mode::kUndecided;
    ValueShape shape;
    Schema schema;     // kObject, kArray
    std::string text;  // that is not in the JSON yet
    std::unordered_set<std::string> members;
    size_t num_written = 0;  // members or elements
  };

  static bool waits_as_string(const Frame& frame);
  static void begin_string(Frame& frame, std::string& json);
  void begin_container(Frame& frame, std::string& json);
  void begin_child(std::string_view name, std::string& json);
  void write_rest(Frame& frame, std::string& json);
  bool keeps_tree() const;

  std::vector<Frame> frames_;  // values being written, from the call itself to the innermost
  std::vector<ToolElement>
      tree_;              // kTree, kMarkedUp, kRepeated: elements open inside the last frame, itself first
  std::string tree_raw_;  // what the tree was read from
};

}  // namespace sparrow
