// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_arguments.h"

#include <algorithm>
#include <utility>

#include "base/json/json_writer.h"

namespace sparrow {
namespace {

// Deeper nesting is no tool's input, and every reader of JSON has a limit of its own.
constexpr size_t kMaxDepth = 48;

constexpr std::string_view kCallElement = "invoke";

// The inside of a JSON string, for text that is UTF-8.
void append_escaped(std::string& json, std::string_view text) {
  const auto stands_for_itself = [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\';
  };
  for (auto at = text.begin(); at != text.end();) {
    const auto end = std::find_if_not(at, text.end(), stands_for_itself);
    json.append(at, end);
    if (end == text.end()) return;
    std::string escaped;
    append_json_string(escaped, {&*end, 1});
    json.append(escaped, 1, escaped.size() - 2);
    at = end + 1;
  }
}

// Text that could still turn out to be null, given that more may follow.
bool may_become_null(std::string_view text) {
  constexpr std::string_view kNull = "null";
  if (text.size() > kNull.size()) return false;
  return std::equal(text.begin(), text.end(), kNull.begin(), [](char a, char b) { return (a | 0x20) == b; });
}

}  // namespace

ToolArguments::ToolArguments(const Schema& parameters) {
  Frame& call = frames_.emplace_back();
  call.name = kCallElement;
  call.mode = Mode::kObject;
  call.schema = parameters;
  call.shape = ValueShape(parameters);
  if (call.shape.count(ValueKind::kObject) > 1 || call.shape.lists_containers()) {
    call.mode = Mode::kTree;
    tree_.push_back({.name = call.name, .text = {}, .children = {}});
  }
}

void ToolArguments::begin(std::string& json) {
  json += '{';
}

// Text that waits because it may become null is a string as soon as an element follows.
bool ToolArguments::waits_as_string(const Frame& frame) {
  return frame.mode == Mode::kUndecided && frame.shape.prefers_string() && !is_blank(frame.text);
}

bool ToolArguments::in_string() const {
  if (frames_.empty()) return false;
  const Frame& frame = frames_.back();
  return frame.mode == Mode::kString || frame.mode == Mode::kMarkedUp || waits_as_string(frame);
}

bool ToolArguments::keeps_tree() const {
  const Mode mode = frames_.back().mode;
  return mode == Mode::kTree || mode == Mode::kMarkedUp || mode == Mode::kRepeated;
}

std::string ToolArguments::unsent() const {
  std::string out;
  for (const Frame& frame : frames_)
    if (frame.mode == Mode::kUndecided || !is_blank(frame.text)) out += frame.text;
  return out + tree_raw_;
}

void ToolArguments::text(std::string_view text, std::string& json) {
  Frame& frame = frames_.back();
  if (keeps_tree()) {
    if (frames_.size() == 1 && tree_.size() == 1) return;  // between two parameters
    tree_raw_ += text;
    if (frame.mode == Mode::kTree) tree_.back().text += text;
    return;
  }
  if (frame.mode == Mode::kString) return append_escaped(json, text);
  if (frames_.size() == 1) return;  // between two parameters
  frame.text += text;
  if (frame.mode != Mode::kUndecided || !frame.shape.prefers_string()) return;
  // All that has come counts, not this piece alone. What waited is blank or begins null: the first byte says.
  if (is_blank(frame.text.front()) && is_blank(text)) return;
  if (frame.shape.nullable() && may_become_null(frame.text)) return;
  begin_string(frame, json);
}

void ToolArguments::begin_string(Frame& frame, std::string& json) {
  json += '"';
  append_escaped(json, std::exchange(frame.text, {}));
  frame.mode = Mode::kString;
}

// The first child of a value decides what it is, where the schema leaves no choice.
void ToolArguments::begin_container(Frame& frame, std::string& json) {
  const ValueShape& shape = frame.shape;
  const int objects = shape.count(ValueKind::kObject), arrays = shape.count(ValueKind::kArray);
  frame.mode = Mode::kTree;
  for (const SchemaAlternative& alternative : shape.alternatives()) {
    if (shape.lists_containers()) break;
    if (alternative.kind == ValueKind::kObject && objects == 1 && arrays == 0 &&
        alternative.schema.declares_members())
      frame.mode = Mode::kObject;
    else if (alternative.kind == ValueKind::kArray && objects == 0 && arrays == 1)
      frame.mode = Mode::kArray;
    else
      continue;
    frame.schema = alternative.schema;
    json += frame.mode == Mode::kObject ? '{' : '[';
    return;
  }
  tree_raw_ = std::exchange(frame.text, {});
  tree_.push_back({.name = frame.name, .text = tree_raw_, .children = {}});
}

void ToolArguments::begin_child(std::string_view name, std::string& json) {
  Frame& parent = frames_.back();
  Frame child;
  child.name = name;
  if (parent.mode == Mode::kObject && !parent.members.insert(child.name).second) {
    child.mode = Mode::kRepeated;
    tree_.push_back({.name = child.name, .text = {}, .children = {}});
  } else {
    const size_t index = parent.num_written++;
    if (index > 0) json += ',';
    if (parent.mode == Mode::kObject) {
      append_json_string(json, name);
      json += ':';
    }
    child.shape =
        ValueShape(parent.mode == Mode::kObject ? parent.schema.property(name) : parent.schema.item(index));
  }
  frames_.push_back(std::move(child));
}

bool ToolArguments::open(std::string_view name, std::string_view raw, std::string& json) {
  if (frames_.size() + tree_.size() >= kMaxDepth) return false;
  Frame& frame = frames_.back();
  if (waits_as_string(frame)) begin_string(frame, json);
  if (frame.mode == Mode::kUndecided) begin_container(frame, json);
  if (frame.mode == Mode::kString) {
    frame.mode = Mode::kMarkedUp;
    tree_.push_back({.name = frame.name, .text = {}, .children = {}});
  }
  if (keeps_tree()) {
    tree_raw_ += raw;
    tree_.push_back({.name = std::string(name), .text = {}, .children = {}});
  } else {
    begin_child(name, json);
  }
  return true;
}

bool ToolArguments::close(std::string_view name, std::string_view raw, std::string& json) {
  Frame& frame = frames_.back();
  if (keeps_tree()) {
    if (tree_.back().name != name) return false;
    if (tree_.size() > 1) {
      tree_raw_ += raw;
      ToolElement done = std::move(tree_.back());
      tree_.pop_back();
      if (frame.mode == Mode::kTree) tree_.back().children.push_back(std::move(done));
      return true;
    }
  }
  if (frame.name != name) return false;
  write_rest(frame, json);
  frames_.pop_back();
  tree_.clear();
  tree_raw_.clear();
  return true;
}

void ToolArguments::write_rest(Frame& frame, std::string& json) {
  switch (frame.mode) {
    case Mode::kUndecided:
      return append_leaf(json, frame.shape, frame.text);
    case Mode::kMarkedUp:
      append_escaped(json, tree_raw_);
      [[fallthrough]];
    case Mode::kString:
      json += '"';
      return;
    case Mode::kObject:
      if (!is_blank(frame.text)) {
        const std::string key = mixed_text_key({frame.members.begin(), frame.members.end()});
        if (frame.num_written > 0) json += ',';
        append_json_string(json, key);
        json += ':';
        append_leaf(json, ValueShape(frame.schema.property(key)), frame.text);
      }
      json += '}';
      return;
    case Mode::kArray:
      if (!is_blank(frame.text)) {
        if (frame.num_written > 0) json += ',';
        append_leaf(json, ValueShape(frame.schema.item(frame.num_written)), frame.text);
      }
      json += ']';
      return;
    case Mode::kTree:
      if (frames_.size() == 1) return append_call(json, frame.shape, tree_.front());
      return append_element(json, frame.shape, tree_.front());
    case Mode::kRepeated:
      return;
  }
}

}  // namespace sparrow
