// SPDX-License-Identifier: Apache-2.0
// One value of a tool call: the text or the elements that the model wrote, turned into JSON by the schema. A
// value that does not fit its schema stays the string that was written: nothing is guessed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/output/tool_schema.h"

namespace sparrow {

// <name>text<child>...</child>text</name>
struct ToolElement {
  std::string name;
  std::string text;  // all text directly inside, joined
  std::vector<ToolElement> children;
};

// The types a value may have, looked at once.
class ValueShape {
 public:
  ValueShape() : ValueShape(Schema()) {}
  explicit ValueShape(const Schema& schema);

  bool allows(ValueKind kind) const { return count(kind) > 0; }
  bool nullable() const { return nullable_; }
  // The first alternative that is not null is a string, and none has elements: text that is not null is this
  // string, whatever it looks like and whatever follows it.
  bool prefers_string() const { return prefers_string_; }
  // Objects or lists are among the values of enum and const.
  bool lists_containers() const { return lists_containers_; }
  int count(ValueKind kind) const;
  const std::vector<SchemaAlternative>& alternatives() const { return alternatives_; }

 private:
  std::vector<SchemaAlternative> alternatives_;
  bool nullable_ = false;
  bool prefers_string_ = false;
  bool lists_containers_ = false;
};

bool is_blank(char c);
bool is_blank(std::string_view text);

// A value without child elements.
void append_leaf(std::string& out, const ValueShape& shape, std::string_view text);
// Any value.
void append_element(std::string& out, const ValueShape& shape, const ToolElement& element);
// The arguments of a call, behind their opening brace.
void append_call(std::string& out, const ValueShape& shape, const ToolElement& call);

// The member that keeps the text written between child elements: $text, or with more $ where a child has that
// name.
std::string mixed_text_key(const std::vector<std::string>& member_names);

}  // namespace sparrow
