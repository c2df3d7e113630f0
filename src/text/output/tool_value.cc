// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_value.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/json/json_writer.h"
#include "text/output/tool_fit.h"
#include "text/output/tool_number.h"

namespace sparrow {
namespace {

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

// JSON text passes as it was written. Of a key that occurs twice the last one is taken, for every reader.
std::optional<std::string> json_text(std::string_view text, std::optional<ValueKind> wanted) {
  text = trimmed(text);
  if (wanted && !text.starts_with(*wanted == ValueKind::kObject ? '{' : '[')) return std::nullopt;
  const auto written = JsonDocument::parse(text, "value");
  if (written.ok())
    return all_numbers_finite(written->root()) ? std::optional(std::string(text)) : std::nullopt;
  const auto read = JsonDocument::parse(text, "value", {.last_of_equal_keys = true});
  if (!read.ok() || !all_numbers_finite(read->root())) return std::nullopt;
  JsonWriter json;
  write_json(read->root(), json);
  return json.take_part();
}

std::string quoted_json(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// Whatever else it could be.
std::optional<std::string> listed_json(const ValueShape& shape, const ToolElement& element) {
  for (const SchemaAlternative& alternative : shape.alternatives())
    if (const auto value = listed_value(alternative.schema, element)) {
      JsonWriter json;
      write_json(*value, json);
      return json.take_part();
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

bool takes_any_text(const Schema& string) {
  for (const char* keyword : {"pattern", "minLength", "maxLength"})
    if (!string.all(keyword).empty()) return false;
  return true;
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

// Of several alternatives of one kind the one that the children fit best, and of equal ones the first: all is
// as it says; else its const and enum are ({"kind": "a", ...}); else it declares all the children.
struct Choice {
  const Schema* schema = nullptr;
  bool fits = false;
};
Choice best_of(ValueKind kind, const ValueShape& shape, const ToolElement& element) {
  Choice best;
  int best_rank = -1;
  for (const SchemaAlternative& alternative : shape.alternatives()) {
    if (alternative.kind != kind) continue;
    const Schema& schema = alternative.schema;
    const bool fit = fits(alternative, element);
    const bool declares_all =
        std::all_of(element.children.begin(), element.children.end(),
                    [&](const ToolElement& child) { return schema.declares_property(child.name); });
    const int rank = 4 * fit + 2 * (fit || fits_listed_members(schema, element)) + declares_all;
    if (rank <= best_rank) continue;
    best = {&schema, fit};
    best_rank = rank;
  }
  return best;
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
    for (const Json& value : alternative.schema.listed_values()) {
      nullable_ |= alternative.kind == ValueKind::kEnum && value.is_null();
      lists_containers_ |= value.is_object() || value.is_array();
    }
  }
  if (first == nullptr || (first->kind != ValueKind::kString && first->kind != ValueKind::kEnum)) return;
  // Elements may still follow the text, and where they can be more than text they must not become a string.
  if (allows(ValueKind::kObject) || allows(ValueKind::kArray) || allows(ValueKind::kAny)) return;
  if (lists_containers_) return;
  const size_t others = alternatives_.size() - static_cast<size_t>(count(ValueKind::kNull));
  const bool only_strings = static_cast<size_t>(count(ValueKind::kString)) == others;
  const std::vector<Json> listed = first->schema.listed_values();
  if (first->kind == ValueKind::kEnum)
    prefers_string_ = others == 1 && std::all_of(listed.begin(), listed.end(), [](const Json& value) {
                        return value.is_string() || value.is_null();
                      });
  else
    prefers_string_ = only_strings || (listed.empty() && takes_any_text(first->schema));
}

int ValueShape::count(ValueKind kind) const {
  return static_cast<int>(std::count_if(alternatives_.begin(), alternatives_.end(),
                                        [kind](const SchemaAlternative& a) { return a.kind == kind; }));
}

// What it fits as it stands; else what it can be read as, but no number or truth where it can be a string:
// 02134 is no integer that was written so.
std::string typed_leaf(const ValueShape& shape, std::string_view text) {
  const auto& alternatives = shape.alternatives();
  const bool alone = alternatives.size() - static_cast<size_t>(shape.count(ValueKind::kNull)) == 1;
  const ToolElement element{.name = {}, .text = std::string(text), .children = {}};
  bool free_string = false;
  for (const SchemaAlternative& alternative : alternatives) {
    free_string |= alternative.kind == ValueKind::kString && alternative.schema.listed_values().empty();
    if (!alone && fits(alternative, element))
      if (const auto json = convert(alternative, text, alone)) return *json;
  }
  for (const SchemaAlternative& alternative : alternatives) {
    const ValueKind kind = alternative.kind;
    const bool scalar =
        kind == ValueKind::kInteger || kind == ValueKind::kNumber || kind == ValueKind::kBoolean;
    if (scalar && free_string) continue;
    if (const auto json = convert(alternative, text, alone)) return *json;
  }
  return quoted_json(text);
}

void append_leaf(std::string& out, const ValueShape& shape, std::string_view text) {
  if (const auto listed = listed_json(shape, {.name = {}, .text = std::string(text), .children = {}})) {
    out += *listed;
    return;
  }
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
  out += typed_leaf(shape, text);
}

void append_element(std::string& out, const ValueShape& shape, const ToolElement& element) {
  if (element.children.empty()) return append_leaf(out, shape, element.text);
  if (const auto listed = listed_json(shape, element)) {
    out += *listed;
    return;
  }
  const bool all_items = std::all_of(element.children.begin(), element.children.end(),
                                     [](const ToolElement& child) { return child.name == kItem; });
  const Choice object = best_of(ValueKind::kObject, shape, element);
  Choice array = best_of(ValueKind::kArray, shape, element);
  if (array.schema != nullptr && object.schema != nullptr &&
      (!all_items || object.schema->declares_property(kItem) || (object.fits && !array.fits)))
    array = {};
  if (array.schema != nullptr) return append_items(out, *array.schema, element);
  if (object.schema != nullptr) return append_members(out, *object.schema, element);
  if (all_items && is_blank(element.text)) return append_items(out, Schema(), element);
  append_members(out, Schema(), element);
}

void append_call(std::string& out, const ValueShape& shape, const ToolElement& call) {
  std::string members = call.children.empty() ? "{}" : "";
  if (const auto listed = listed_json(shape, call); listed && listed->starts_with('{')) members = *listed;
  const Choice object = best_of(ValueKind::kObject, shape, call);
  if (members.empty()) append_members(members, object.schema ? *object.schema : Schema(), call);
  out += std::string_view(members).substr(1);
}

std::string mixed_text_key(const std::vector<std::string>& member_names) {
  std::string key(kMixedText);
  while (std::find(member_names.begin(), member_names.end(), key) != member_names.end())
    key.insert(0, 1, '$');
  return key;
}

}  // namespace sparrow
