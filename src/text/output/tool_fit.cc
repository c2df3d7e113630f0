// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_fit.h"

#include <algorithm>
#include <string>

#include "text/constraint/pattern.h"
#include "text/constraint/schema/decimal_range.h"

namespace sparrow {
namespace {

// A schema may refer to itself, many times over: this bounds the work for one value.
constexpr int kMaxChecks = 250;
constexpr size_t kMaxPatternBytes = 512, kMaxTextBytes = 4096;

bool same_value(const Json& a, const Json& b) {
  if (a.is_string() || b.is_string())
    return a.is_string() && b.is_string() && a.string_view() == b.string_view();
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

// `parsed`: the text as JSON, where it is some.
bool is_leaf(const Json& listed, std::string_view text, const Result<JsonDocument>& parsed) {
  if (listed.is_string()) return listed.string_view() == text;
  if ((listed.is_object() || listed.is_array()) && listed.size() == 0 && is_blank(text)) return true;
  return parsed.ok() && same_value(listed, parsed->root());
}

bool is_value(const Json& listed, const ToolElement& written) {
  if (written.children.empty())
    return is_leaf(listed, written.text, JsonDocument::parse(written.text, "value"));
  if (!is_blank(written.text) || listed.size() != written.children.size()) return false;
  for (size_t i = 0; i < listed.size(); ++i) {
    const std::string_view name = listed.is_array() ? kItem : listed.key(i);
    const auto same_name = [name](const ToolElement& child) { return child.name == name; };
    const auto child = listed.is_array()
                           ? written.children.begin() + static_cast<ptrdiff_t>(i)
                           : std::find_if(written.children.begin(), written.children.end(), same_name);
    if (child == written.children.end() || !same_name(*child)) return false;
    if (!is_value(listed.is_array() ? listed.element(i) : listed.member(i), *child)) return false;
  }
  return true;
}

// A count that a keyword gives, or what is said where it gives none.
bool within(const Schema& schema, std::string_view least, std::string_view most, size_t count) {
  const auto size = static_cast<int64_t>(count);
  for (const Json& bound : schema.all(least))
    if (const auto value = bound.as_int(0, INT64_MAX); value.ok() && size < value.value()) return false;
  for (const Json& bound : schema.all(most))
    if (const auto value = bound.as_int(0, INT64_MAX); value.ok() && size > value.value()) return false;
  return true;
}

bool string_fits(const Schema& schema, std::string_view text) {
  const auto length = std::count_if(text.begin(), text.end(),
                                    [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  if (!within(schema, "minLength", "maxLength", static_cast<size_t>(length))) return false;
  for (const Json& pattern : schema.all("pattern")) {
    if (pattern.string_view().size() > kMaxPatternBytes || text.size() > kMaxTextBytes) continue;
    auto made = Pattern::create(pattern.string_view(), /*search=*/true);
    if (made.ok() && !made.value().matches(text)) return false;
  }
  return true;
}

bool number_fits(const Schema& schema, std::string_view text, bool whole) {
  constexpr std::string_view kInteger = "-0123456789", kNumber = "-+.0123456789eE";
  if (text.find_first_not_of(whole ? kInteger : kNumber) != text.npos) return false;
  const auto document = JsonDocument::parse(text, "value");
  if (!document.ok() || !document->root().is_number() || !document->root().as_number().ok()) return false;
  const auto number = decimal_of(document->root());
  if (!number.ok()) return true;
  for (const std::string_view keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
    for (const Json& bound : schema.all(keyword)) {
      const auto limit = decimal_of(bound);
      if (!limit.ok()) continue;
      const int order = compare(number.value(), limit.value());
      const int past = keyword.ends_with("inimum") ? -order : order;
      if (past > 0 || (past == 0 && keyword.starts_with("ex"))) return false;
    }
  for (const Json& step : schema.all("multipleOf"))
    if (const auto by = step.as_int(1, INT64_MAX), own = document->root().as_int(INT64_MIN, INT64_MAX);
        by.ok() && own.ok() && own.value() % by.value() != 0)
      return false;
  return true;
}

bool is_json(std::string_view text, bool object) {
  const auto json = JsonDocument::parse(text, "value", {.last_of_equal_keys = true});
  return json.ok() && (object ? json->root().is_object() : json->root().is_array());
}

class Fit {
 public:
  bool alternative(const SchemaAlternative& way, const ToolElement& written) {
    if (++checks_ > kMaxChecks) return true;
    if (!way.schema.listed_values().empty()) return listed_value(way.schema, written).has_value();
    const bool leaf = written.children.empty();
    switch (way.kind) {
      case ValueKind::kString:
        return leaf && string_fits(way.schema, written.text);
      case ValueKind::kInteger:
      case ValueKind::kNumber:
        return leaf && number_fits(way.schema, written.text, way.kind == ValueKind::kInteger);
      case ValueKind::kBoolean:
        return leaf && (written.text == "true" || written.text == "false");
      case ValueKind::kNull:
        return leaf && (written.text == "null" || written.text.empty());
      case ValueKind::kObject:
        return object(way.schema, written);
      case ValueKind::kArray:
        return array(way.schema, written);
      case ValueKind::kEnum:
      case ValueKind::kAny:
        return true;
    }
    return true;
  }

 private:
  bool value(const Schema& schema, const ToolElement& written) {
    const std::vector<SchemaAlternative> ways = schema.alternatives();
    return std::any_of(ways.begin(), ways.end(),
                       [&](const SchemaAlternative& way) { return alternative(way, written); });
  }

  bool object(const Schema& schema, const ToolElement& written) {
    const auto& members = written.children;
    if (members.empty() && !is_blank(written.text)) return is_json(written.text, /*object=*/true);
    if (!is_blank(written.text) || !within(schema, "minProperties", "maxProperties", members.size()))
      return false;
    for (const std::string& name : schema.required_names())
      if (std::none_of(members.begin(), members.end(), [&](const auto& one) { return one.name == name; }))
        return false;
    return std::all_of(members.begin(), members.end(), [&](const ToolElement& one) {
      return schema.allows_property(one.name) && value(schema.property(one.name), one);
    });
  }

  bool array(const Schema& schema, const ToolElement& written) {
    const auto& items = written.children;
    if (items.empty() && !is_blank(written.text)) return is_json(written.text, /*object=*/false);
    if (!is_blank(written.text) || !within(schema, "minItems", "maxItems", items.size())) return false;
    for (size_t i = 0; i < items.size(); ++i)
      if (items[i].name != kItem || !value(schema.item(i), items[i])) return false;
    return true;
  }

  int checks_ = 0;
};

}  // namespace

bool fits(const SchemaAlternative& alternative, const ToolElement& written) {
  return Fit().alternative(alternative, written);
}

bool fits_listed_members(const Schema& object, const ToolElement& written) {
  for (const ToolElement& child : written.children)
    if (const Schema member = object.property(child.name);
        !member.listed_values().empty() && !listed_value(member, child))
      return false;
  for (const std::string& name : object.required_names())
    if (!object.property(name).listed_values().empty() &&
        std::none_of(written.children.begin(), written.children.end(),
                     [&](const ToolElement& child) { return child.name == name; }))
      return false;
  return true;
}

std::optional<Json> listed_value(const Schema& schema, const ToolElement& written) {
  const std::vector<Json> listed = schema.listed_values();
  if (listed.empty()) return std::nullopt;
  const bool leaf = written.children.empty();
  const auto parsed = JsonDocument::parse(leaf ? written.text : "", "value");
  for (const Json& value : listed)
    if (leaf ? is_leaf(value, written.text, parsed) : is_value(value, written)) return value;
  return std::nullopt;
}

}  // namespace sparrow
