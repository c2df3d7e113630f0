// SPDX-License-Identifier: Apache-2.0
// enum and const: the listed values that fit all else that is said, as they are written.
#include <algorithm>

#include "base/json/json_writer.h"
#include "base/strf.h"
#include "base/utf8.h"
#include "text/constraint/schema/compiler.h"
#include "text/constraint/schema/decimal_range.h"
#include "text/constraint/schema/formats.h"
#include "text/constraint/vocabulary.h"
#include "text/output/tool_markup.h"

namespace sparrow {
namespace {

constexpr int kMaxDepth = 32;
constexpr size_t kMaxListed = 20'000;

// The same text for what is equal as JSON Schema has it: 1.0 is 1, and members have no order.
std::string canonical(const Json& value) {
  if (value.is_number()) {
    const auto number = decimal_of(value);
    if (!number.ok()) return value.brief();
    const auto& [negative, whole, fraction] = number.value();
    return strf("{}{}.{}", negative && !number.value().is_zero() ? "-" : "", whole, fraction);
  }
  if (value.is_object() || value.is_array()) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < value.size(); ++i)
      parts.push_back(value.is_array() ? canonical(value.element(i))
                                       : json_quoted(value.key(i)) + ":" + canonical(value.member(i)));
    if (value.is_object()) std::sort(parts.begin(), parts.end());
    std::string text(1, value.is_object() ? '{' : '[');
    for (const std::string& part : parts) text += part + ",";
    return text;
  }
  JsonWriter json;
  write_json(value, json);
  return json.take_part();
}

unsigned type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_bool()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  const auto decimal = decimal_of(value);
  return decimal.ok() && decimal.value().fraction.empty() ? kInteger : kNumber;
}

}  // namespace

Result<bool> SchemaCompiler::matches(const Facet& facet, std::string_view keyword, const std::string& pattern,
                                     std::string_view text) {
  const std::string key = std::string(keyword) + " " + pattern;
  auto known = patterns_.find(key);
  if (known == patterns_.end()) {
    auto made = Pattern::create(pattern, /*search=*/keyword != "format");
    if (!made.ok()) return refuse(facet, keyword, strf("cannot be read: {}", made.error().message));
    known = patterns_.emplace(key, std::move(made.value())).first;
  }
  return known->second.matches(text);
}

Result<bool> SchemaCompiler::fits_string(std::string_view text, const Facets& facets) {
  int64_t length = 0;
  for (const char c : text) length += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  const auto min = SPARROW_TRY(largest(facets, "minLength")),
             max = SPARROW_TRY(smallest(facets, "maxLength"));
  if (length < min.value_or(0) || length > max.value_or(INT64_MAX)) return false;
  for (const Facet& facet : facets) {
    if (const auto pattern = member(facet.schema, "pattern"))
      if (!SPARROW_TRY(matches(facet, "pattern", std::string(pattern->string_view()), text))) return false;
    if (const auto format = member(facet.schema, "format")) {
      const auto known = format_pattern(format->string_view());
      if (!known) return refuse(facet, "format", strf("is {}, which is not known here", format->brief()));
      if (!known->empty() && !SPARROW_TRY(matches(facet, "format", std::string(*known), text))) return false;
    }
  }
  return true;
}

Result<bool> SchemaCompiler::fits_number(const Json& value, const Facets& facets) {
  const Decimal number = SPARROW_TRY(decimal_of(value));
  for (const Facet& facet : facets) {
    for (const std::string_view keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      const auto bound = member(facet.schema, keyword);
      if (!bound) continue;
      const int order = compare(number, SPARROW_TRY(decimal_of(*bound)));
      const bool low = keyword.ends_with("inimum"), exclusive = keyword.starts_with("ex");
      if (low ? order < (exclusive ? 1 : 0) : order > (exclusive ? -1 : 0)) return false;
    }
    if (const auto multiple = member(facet.schema, "multipleOf")) {
      const auto whole = multiple->as_int(1, INT64_MAX);
      const auto own = value.as_int(INT64_MIN, INT64_MAX);
      if (!whole.ok() || (!own.ok() && number.fraction.empty()))
        return refuse(facet, "multipleOf", "cannot be checked for the values that are listed");
      if (!own.ok() || own.value() % whole.value() != 0) return false;
    }
  }
  return true;
}

Result<bool> SchemaCompiler::fits_object(const Json& value, const Facets& facets, int depth) {
  const auto min = SPARROW_TRY(largest(facets, "minProperties")),
             max = SPARROW_TRY(smallest(facets, "maxProperties"));
  const auto count = static_cast<int64_t>(value.size());
  if (count < min.value_or(0) || count > max.value_or(INT64_MAX)) return false;
  for (const Facet& facet : facets) {
    const auto required = member(facet.schema, "required");
    for (size_t i = 0; required && i < required->size(); ++i)
      if (!member(value, required->element(i).string_view())) return false;
  }
  for (size_t i = 0; i < value.size(); ++i) {
    if (!SPARROW_TRY(allows_name(facets, std::string(value.key(i))))) return false;
    const Facets inner = SPARROW_TRY(member_facets(facets, std::string(value.key(i))));
    if (!SPARROW_TRY(fits(value.member(i), inner, depth + 1))) return false;
  }
  return true;
}

Result<bool> SchemaCompiler::fits_array(const Json& value, const Facets& facets, int depth) {
  const auto min = SPARROW_TRY(largest(facets, "minItems")), max = SPARROW_TRY(smallest(facets, "maxItems"));
  const auto count = static_cast<int64_t>(value.size());
  if (count < min.value_or(0) || count > max.value_or(INT64_MAX)) return false;
  for (size_t i = 0; i < value.size(); ++i)
    if (!SPARROW_TRY(fits(value.element(i), SPARROW_TRY(item_facets(facets, i)), depth + 1))) return false;
  return true;
}

// Whether enum and const, where they are there, name it.
Result<bool> SchemaCompiler::lists_value(const Facets& facets, const Json& value) {
  for (const Facet& facet : facets) {
    const auto only = member(facet.schema, "const"), list = member(facet.schema, "enum");
    if (!only && !list) continue;
    const std::string text = canonical(value);
    SPARROW_TRY(document_.spend(1 + text.size() / 64));
    if (only && canonical(*only) != text) return false;
    if (!list) continue;
    const auto [entry, is_new] = enums_.try_emplace(facet.pointer);
    for (size_t i = 0; is_new && i < list->size(); ++i) {
      entry->second.insert(canonical(list->element(i)));
      SPARROW_TRY(document_.spend(1));
    }
    if (!entry->second.contains(text)) return false;
  }
  return true;
}

Result<bool> SchemaCompiler::fits(const Json& value, const Facets& facets, int depth) {
  const OpenFacets open = SPARROW_TRY(open_facets(document_, facets));
  if (open.never || depth > kMaxDepth) return false;
  const unsigned types = SPARROW_TRY(types_of(open.facets));
  if (!(type_of(value) & types)) return false;
  if (!SPARROW_TRY(lists_value(open.facets, value))) return false;
  for (const Facet& facet : open.facets) {
    for (const std::string_view keyword : {"anyOf", "oneOf"}) {
      const auto list = member(facet.schema, keyword);
      if (!list || (keyword == "anyOf" ? facet.any_taken : facet.one_taken)) continue;
      int count = 0;
      for (size_t i = 0; i < list->size(); ++i)
        count += SPARROW_TRY(fits(value, {part_of(facet, keyword, std::to_string(i))}, depth + 1));
      if (count == 0 || (keyword == "oneOf" && count > 1)) return false;
    }
  }
  if (value.is_string()) return fits_string(value.string_view(), open.facets);
  if (value.is_number()) return fits_number(value, open.facets);
  if (value.is_object()) return fits_object(value, open.facets, depth);
  if (value.is_array()) return fits_array(value, open.facets, depth);
  return true;
}

Result<std::vector<Json>> SchemaCompiler::listed_values(const Facets& facets) {
  std::vector<Json> values;
  for (const Facet& facet : facets) {
    if (const auto only = member(facet.schema, "const")) return std::vector<Json>{*only};
    const auto list = member(facet.schema, "enum");
    if (!list) continue;
    if (list->size() > kMaxListed)
      return refuse(facet, "enum", strf("lists more than {} values", kMaxListed));
    for (size_t i = 0; i < list->size(); ++i) values.push_back(list->element(i));
    return values;
  }
  return values;
}

// Whether elements can be written for all that is in it.
bool has_tags(const Json& value) {
  for (size_t i = 0; i < value.size(); ++i)
    if (value.is_array() ? !has_tags(value.element(i))
                         : !can_be_tag(value.key(i)) || !has_tags(value.member(i)))
      return false;
  return true;
}

// As M3 writes it.
void SchemaCompiler::write_tool_text(const Json& value, std::string& out) {
  if (value.is_string()) {
    out += value.string_view();
  } else if (value.is_object() || value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      const std::string name(value.is_array() ? "item" : value.key(i));
      out += strf("{}<{}>", kMarkerByte, name);
      write_tool_text(value.is_array() ? value.element(i) : value.member(i), out);
      out += strf("{}</{}>", kMarkerByte, name);
    }
  } else {
    JsonWriter json;
    write_json(value, json);
    out += json.take_part();
  }
}

// nullopt: nothing is listed.
Result<std::optional<NodeId>> SchemaCompiler::listed(const Facets& facets) {
  const bool any = std::ranges::any_of(facets, [](const Facet& facet) {
    return member(facet.schema, "const") || member(facet.schema, "enum");
  });
  if (!any) return std::optional<NodeId>();
  std::vector<std::string> texts;
  const Role role = role_of(facets);
  for (const Json& value : SPARROW_TRY(listed_values(facets))) {
    if (!SPARROW_TRY(fits(value, facets, 0))) continue;
    if (role == Role::kName) {
      if (value.is_string()) texts.push_back(spelled(value.string_view(), spelling_));
    } else if (role == Role::kArguments && !value.is_object()) {
      continue;
    } else if (style_ == ValueStyle::kToolCall && (role == Role::kArguments || has_tags(value))) {
      write_tool_text(value, texts.emplace_back());
    } else {
      JsonWriter json;
      write_json(value, json);
      texts.push_back(json.take_part());
    }
  }
  return std::optional(g_.words(std::move(texts)));
}

}  // namespace sparrow
