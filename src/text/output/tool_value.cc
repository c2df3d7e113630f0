// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_value.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/json/json_writer.h"
#include "text/output/tool_number.h"

namespace sparrow {
namespace {

constexpr std::string_view kItem = "item";
constexpr std::string_view kMixedText = "$text";

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

bool equals_ignoring_case(std::string_view text, std::string_view lower) {
  return std::equal(text.begin(), text.end(), lower.begin(), lower.end(),
                    [](char a, char b) { return a == b || (a >= 'A' && a <= 'Z' && a - 'A' + 'a' == b); });
}

// Numbers too large for a double come back as no number at all.
bool all_numbers_finite(const Json& value) {
  for (size_t i = 0; i < value.size(); ++i)
    if (!all_numbers_finite(value.is_array() ? value.element(i) : value.member(i))) return false;
  if (value.is_object() || value.is_array() || value.is_string()) return true;
  return value.is_bool() || value.is_null() || value.as_number().ok();
}

bool same_value(const Json& a, const Json& b) {
  if (a.is_string() || b.is_string())
    return a.is_string() && b.is_string() && a.as_string().value() == b.as_string().value();
  if (a.is_object() != b.is_object() || a.is_array() != b.is_array() || a.size() != b.size()) return false;
  if (a.is_array()) {
    for (size_t i = 0; i < a.size(); ++i)
      if (!same_value(a.element(i), b.element(i))) return false;
    return true;
  }
  if (a.is_object()) {
    for (size_t i = 0; i < a.size(); ++i)
      if (a.key(i) != b.key(i) || !same_value(a.member(i), b.member(i))) return false;
    return true;
  }
  const auto truth_a = a.as_bool(), truth_b = b.as_bool();
  if (truth_a.ok() || truth_b.ok()) return truth_a.ok() && truth_b.ok() && truth_a.value() == truth_b.value();
  const auto number_a = a.as_number(), number_b = b.as_number();
  if (number_a.ok() || number_b.ok())
    return number_a.ok() && number_b.ok() && number_a.value() == number_b.value();
  return a.is_null() && b.is_null();
}

// JSON text passes as it was written. A key that occurs twice would leave the choice to the reader: not
// taken.
std::optional<std::string> json_text(std::string_view text, std::optional<ValueKind> wanted) {
  text = trimmed(text);
  if (wanted && !text.starts_with(*wanted == ValueKind::kObject ? '{' : '[')) return std::nullopt;
  const auto document = JsonDocument::parse(text, "value");
  if (!document.ok() || !all_numbers_finite(document->root())) return std::nullopt;
  return std::string(text);
}

std::string quoted_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

std::optional<std::string> listed_value(const Schema& schema, std::string_view text) {
  const auto document = JsonDocument::parse(trimmed(text), "value");
  for (const Json& listed : schema.listed_values()) {
    if (listed.is_string() ? listed.as_string().value() != text
                           : !document.ok() || !same_value(listed, document->root()))
      continue;
    return listed.is_string() ? quoted_json(text) : std::string(trimmed(text));
  }
  return std::nullopt;
}

// {"type": "string", "enum": ["auto"]} next to a number: 5 is not meant for it.
bool lists_other_strings(const Schema& schema, std::string_view text) {
  const std::vector<Json> listed = schema.listed_values();
  return !listed.empty() && std::none_of(listed.begin(), listed.end(), [text](const Json& value) {
    return value.is_string() && value.as_string().value() == text;
  });
}

std::optional<std::string> boolean(std::string_view text) {
  text = trimmed(text);
  if (text == "1" || equals_ignoring_case(text, "true")) return "true";
  if (text == "0" || equals_ignoring_case(text, "false")) return "false";
  return std::nullopt;
}

void append_key(std::string& out, std::string_view separator, std::string_view key) {
  out += separator;
  append_json_string(out, key);
  out += ':';
}

// nullopt: the text is not of this kind. `alone`: there is no other kind to try.
std::optional<std::string> convert(const SchemaAlternative& alternative, std::string_view text, bool alone) {
  switch (alternative.kind) {
    case ValueKind::kString:
      if (!alone && lists_other_strings(alternative.schema, text)) return std::nullopt;
      return quoted_json(text);
    case ValueKind::kInteger:
      return json_integer(text);
    case ValueKind::kNumber:
      return json_number(text);
    case ValueKind::kBoolean:
      return boolean(text);
    case ValueKind::kObject:
    case ValueKind::kArray:
      if (is_blank(text)) return alternative.kind == ValueKind::kObject ? "{}" : "[]";
      return json_text(text, alone ? std::nullopt : std::optional(alternative.kind));
    case ValueKind::kEnum:
      return listed_value(alternative.schema, text);
    case ValueKind::kNull:
    case ValueKind::kAny:
      return std::nullopt;
  }
  return std::nullopt;
}

void append_members(std::string& out, const Schema& schema, const ToolElement& element) {
  std::vector<std::string> names;  // in order of first appearance
  std::map<std::string_view, std::vector<const ToolElement*>> members;
  for (const ToolElement& child : element.children) {
    std::vector<const ToolElement*>& values = members[child.name];
    if (values.empty()) names.push_back(child.name);
    // With a schema the first one stands, as it does where members stream.
    if (values.empty() || !schema.declares_members()) values.push_back(&child);
  }
  const char* separator = "{";
  for (const std::string& name : names) {
    append_key(out, separator, name);
    separator = ",";
    const ValueShape member(schema.property(name));
    const std::vector<const ToolElement*>& values = members[name];
    for (size_t i = 0; i < values.size(); ++i) {
      if (values.size() > 1) out += i == 0 ? '[' : ',';
      append_element(out, member, *values[i]);
    }
    if (values.size() > 1) out += ']';
  }
  if (!is_blank(element.text)) {
    const std::string key = mixed_text_key(names);
    append_key(out, separator, key);
    append_leaf(out, ValueShape(schema.property(key)), element.text);
  }
  out += '}';
}

void append_items(std::string& out, const Schema& schema, const ToolElement& element) {
  out += '[';
  for (size_t i = 0; i < element.children.size(); ++i) {
    if (i > 0) out += ',';
    append_element(out, ValueShape(schema.item(i)), element.children[i]);
  }
  if (!is_blank(element.text)) {
    if (!element.children.empty()) out += ',';
    append_leaf(out, ValueShape(schema.item(element.children.size())), element.text);
  }
  out += ']';
}

// The first object that declares all the children, else the first object.
const Schema* best_object(const ValueShape& shape, const ToolElement& element) {
  const Schema* first = nullptr;
  for (const SchemaAlternative& alternative : shape.alternatives()) {
    if (alternative.kind != ValueKind::kObject) continue;
    if (first == nullptr) first = &alternative.schema;
    if (std::all_of(element.children.begin(), element.children.end(), [&](const ToolElement& child) {
          return alternative.schema.declares_property(child.name);
        }))
      return &alternative.schema;
  }
  return first;
}

const Schema* first_array(const ValueShape& shape) {
  for (const SchemaAlternative& alternative : shape.alternatives())
    if (alternative.kind == ValueKind::kArray) return &alternative.schema;
  return nullptr;
}

}  // namespace

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

bool is_blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return is_blank(c); });
}

ValueShape::ValueShape(const Schema& schema) : alternatives_(schema.alternatives()) {
  const SchemaAlternative* first = nullptr;
  for (const SchemaAlternative& alternative : alternatives_) {
    nullable_ |= alternative.kind == ValueKind::kNull;
    if (first == nullptr && alternative.kind != ValueKind::kNull) first = &alternative;
    if (alternative.kind != ValueKind::kEnum) continue;
    const std::vector<Json> listed = alternative.schema.listed_values();
    nullable_ |= std::any_of(listed.begin(), listed.end(), [](const Json& value) { return value.is_null(); });
  }
  if (first == nullptr || (first->kind != ValueKind::kString && first->kind != ValueKind::kEnum)) return;
  // Elements may still follow the text, and where they can be more than text they must not become a string.
  if (allows(ValueKind::kObject) || allows(ValueKind::kArray) || allows(ValueKind::kAny)) return;
  const std::vector<Json> listed = first->schema.listed_values();
  const bool alone = alternatives_.size() - static_cast<size_t>(count(ValueKind::kNull)) == 1;
  const bool only_strings = std::all_of(
      listed.begin(), listed.end(), [](const Json& value) { return value.is_string() || value.is_null(); });
  prefers_string_ = listed.empty() || (alone && (only_strings || first->kind == ValueKind::kString));
}

int ValueShape::count(ValueKind kind) const {
  return static_cast<int>(std::count_if(alternatives_.begin(), alternatives_.end(),
                                        [kind](const SchemaAlternative& a) { return a.kind == kind; }));
}

void append_leaf(std::string& out, const ValueShape& shape, std::string_view text) {
  const bool string_allowed = shape.allows(ValueKind::kString) || shape.allows(ValueKind::kEnum);
  // Blanks are part of a string, so only where there can be none may they be cut off.
  const bool typed = !string_allowed && !shape.allows(ValueKind::kAny);
  if (equals_ignoring_case(typed ? trimmed(text) : text, "null") && (shape.nullable() || !string_allowed)) {
    out += "null";
    return;
  }
  const bool container = shape.allows(ValueKind::kObject) || shape.allows(ValueKind::kArray);
  if (shape.nullable() && (text.empty() || (is_blank(text) && !container && !string_allowed))) {
    out += string_allowed || shape.allows(ValueKind::kAny) ? "\"\"" : "null";
    return;
  }
  const auto& alternatives = shape.alternatives();
  const bool alone = alternatives.size() - static_cast<size_t>(shape.count(ValueKind::kNull)) == 1;
  for (const SchemaAlternative& alternative : alternatives)
    if (const auto json = convert(alternative, text, alone)) {
      out += *json;
      return;
    }
  append_json_string(out, text);
}

void append_element(std::string& out, const ValueShape& shape, const ToolElement& element) {
  if (element.children.empty()) return append_leaf(out, shape, element.text);
  const bool all_items = std::all_of(element.children.begin(), element.children.end(),
                                     [](const ToolElement& child) { return child.name == kItem; });
  const Schema* object = best_object(shape, element);
  const Schema* array = first_array(shape);
  if (array != nullptr && object != nullptr && (!all_items || object->declares_property(kItem)))
    array = nullptr;
  if (array != nullptr) return append_items(out, *array, element);
  if (object != nullptr) return append_members(out, *object, element);
  if (all_items && is_blank(element.text)) return append_items(out, Schema(), element);
  append_members(out, Schema(), element);
}

std::string mixed_text_key(const std::vector<std::string>& member_names) {
  std::string key(kMixedText);
  while (std::find(member_names.begin(), member_names.end(), key) != member_names.end())
    key.insert(0, 1, '$');
  return key;
}

}  // namespace sparrow
