// SPDX-License-Identifier: Apache-2.0
#include "text/constraint/schema/facets.h"

#include <algorithm>
#include <array>

#include "base/strf.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

// Kept to by the code beside.
constexpr std::string_view kHeld[] = {"$ref",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "enum",
                                      "const",
                                      "type",
                                      "nullable",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "patternProperties",
                                      "propertyNames",
                                      "minProperties",
                                      "maxProperties",
                                      "items",
                                      "prefixItems",
                                      "additionalItems",
                                      "minItems",
                                      "maxItems",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "multipleOf",
                                      "minLength",
                                      "maxLength",
                                      "pattern",
                                      "format"};
// Say nothing about what a value is.
constexpr std::string_view kNotes[] = {
    "title",    "description",     "default",          "examples",      "example",       "deprecated",
    "readOnly", "writeOnly",       "$comment",         "$schema",       "$defs",         "definitions",
    "$anchor",  "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "strict"};
constexpr std::string_view kKnown[] = {"not",
                                       "if",
                                       "then",
                                       "else",
                                       "contains",
                                       "minContains",
                                       "maxContains",
                                       "uniqueItems",
                                       "dependentRequired",
                                       "dependentSchemas",
                                       "dependencies",
                                       "unevaluatedItems",
                                       "unevaluatedProperties",
                                       "$dynamicRef",
                                       "$dynamicAnchor",
                                       "$recursiveRef",
                                       "$recursiveAnchor",
                                       "$vocabulary",
                                       "$id",
                                       "id"};
// Hold no schemas, and hold them by names of their own.
constexpr std::string_view kValues[] = {"enum", "const", "default", "examples", "example"};
constexpr std::string_view kNamed[] = {"properties", "patternProperties", "$defs", "definitions",
                                       "dependentSchemas"};
constexpr std::string_view kLists[] = {"enum", "required", "allOf", "anyOf", "oneOf", "prefixItems"};
constexpr std::string_view kObjects[] = {"properties", "patternProperties"};
constexpr size_t kMaxFacets = 256;
constexpr size_t kMaxWork = 250'000;

template <size_t N>
bool lists(const std::string_view (&names)[N], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// What a keyword that cannot be held to may say all the same: nothing.
bool says_nothing(const Json& schema, std::string_view key, const Json& value) {
  const auto is_bool = [&](bool wanted) { return value.is_bool() && value.as_bool().value() == wanted; };
  if (key == "uniqueItems") return is_bool(false);
  if (key == "unevaluatedItems" || key == "unevaluatedProperties")
    return is_bool(true) || (value.is_object() && value.size() == 0);
  if (key == "dependentRequired" || key == "dependentSchemas" || key == "dependencies")
    return value.size() == 0;
  if (key == "then" || key == "else") return !member(schema, "if");
  if (key == "if") return !member(schema, "then") && !member(schema, "else");
  if (key == "minContains" || key == "maxContains") return !member(schema, "contains");
  return key == "$vocabulary" || key == "$dynamicAnchor" || key == "$recursiveAnchor";
}

// Keywords are read as lists and as objects wherever they are met: what is neither goes no further.
Status check_kind(const Facet& facet, std::string_view key, const Json& value) {
  // "required": true, as drafts before 4 wrote it beside a member: of no object it says nothing.
  if (key == "required" && value.is_bool()) return Ok{};
  if (lists(kLists, key) && !value.is_array()) return refuse(facet, key, "is no list");
  if (lists(kObjects, key) && !value.is_object()) return refuse(facet, key, "is no object");
  return Ok{};
}

Status check_keywords(const Facet& facet) {
  for (size_t i = 0; i < facet.schema.size(); ++i) {
    const std::string_view key = facet.schema.key(i);
    SPARROW_TRY(check_kind(facet, key, facet.schema.member(i)));
    if (lists(kHeld, key) || lists(kNotes, key) || key.starts_with("x-")) continue;
    // Of the whole document it is only its name.
    if ((key == "$id" || key == "id") && facet.pointer == "#") continue;
    if (lists(kKnown, key)) {
      if (says_nothing(facet.schema, key, facet.schema.member(i))) continue;
      return refuse(facet, key, "cannot be held to while an answer is written");
    }
    return refuse(facet, key, "is not a keyword that is known here");
  }
  return Ok{};
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && std::isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        std::isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      out += static_cast<char>(16 * digit(text[i + 1]) + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

}  // namespace

std::optional<Json> member(const Json& object, std::string_view key) {
  if (!object.is_object()) return std::nullopt;
  for (size_t i = 0; i < object.size(); ++i)
    if (object.key(i) == key) return object.member(i);
  return std::nullopt;
}

std::string below(const std::string& pointer, std::string_view key) {
  std::string escaped(key);
  replace_all(escaped, "~", "~0");
  replace_all(escaped, "/", "~1");
  return pointer + "/" + escaped;
}

Facet part_of(const Facet& facet, std::string_view key) {
  return {*member(facet.schema, key), below(facet.pointer, key)};
}

Facet part_of(const Facet& facet, std::string_view key, std::string_view inner) {
  const Json outer = *member(facet.schema, key);
  std::optional<Json> found = member(outer, inner);
  if (!found) found = outer.element(static_cast<size_t>(std::stoul(std::string(inner))));
  return {*found, below(below(facet.pointer, key), inner)};
}

Role role_of(const Facets& facets) {
  for (const Facet& facet : facets)
    if (facet.role != Role::kValue) return facet.role;
  return Role::kValue;
}

Error refuse(const Facet& facet, std::string_view keyword, std::string_view why) {
  return {Errc::kInvalidArgument, strf("the schema's keyword {} at {} {}", excerpt(std::string(keyword), 60),
                                       excerpt(facet.pointer), why)};
}

Status SchemaDocument::spend(size_t work) {
  spent_ += work;
  if (spent_ > kMaxWork) return Error{Errc::kInvalidArgument, "the schema is too large"};
  return Ok{};
}

Status SchemaDocument::find_anchors(const Facet& at, bool is_schema) {
  SPARROW_TRY(spend(1));
  if (const auto own = is_schema ? member(at.schema, "$anchor") : std::nullopt; own && own->is_string())
    anchors_->emplace(own->string_view(), at);
  const bool array = at.schema.is_array();
  for (size_t i = 0; i < at.schema.size(); ++i) {
    const std::string key = array ? std::to_string(i) : std::string(at.schema.key(i));
    if (is_schema && lists(kValues, key)) continue;
    const Facet inner{array ? at.schema.element(i) : at.schema.member(i), below(at.pointer, key)};
    SPARROW_TRY(find_anchors(inner, !(is_schema && lists(kNamed, key))));
  }
  return Ok{};
}

Result<Facet> SchemaDocument::resolve(const Facet& from, const std::string& reference) {
  std::string text = reference;
  if (const auto id = member(root_, "$id"); id && id->is_string() && text.starts_with(id->string_view()))
    text.erase(0, id->string_view().size());
  if (text.empty()) text = "#";
  if (text[0] != '#')
    return refuse(from, "$ref",
                  strf("refers to {}, and only references into the schema itself are followed",
                       excerpt(reference, 80)));
  text = percent_decoded(text.substr(1));
  const auto missing = [&] {
    return refuse(from, "$ref", strf("refers to {}, which is not there", excerpt(reference, 80)));
  };
  Facet at = root();
  if (text.empty()) return at;
  if (text[0] != '/') {
    if (!anchors_) {
      anchors_.emplace();
      SPARROW_TRY(find_anchors(at, /*is_schema=*/true));
    }
    const auto found = anchors_->find(text);
    return found != anchors_->end() ? Result<Facet>(found->second) : missing();
  }
  for (size_t start = 1; start <= text.size();) {
    const size_t end = std::min(text.find('/', start), text.size());
    std::string step = text.substr(start, end - start);
    replace_all(step, "~1", "/");
    replace_all(step, "~0", "~");
    start = end + 1;
    SPARROW_TRY(spend(1 + at.schema.size() / 64));
    std::optional<Json> next = member(at.schema, step);
    if (!next && at.schema.is_array() && !step.empty() && step.size() < 7 &&
        step.find_first_not_of("0123456789") == std::string::npos && std::stoul(step) < at.schema.size())
      next = at.schema.element(std::stoul(step));
    if (!next) return missing();
    at = {*next, below(at.pointer, step)};
  }
  return at;
}

Result<OpenFacets> open_facets(SchemaDocument& document, const Facets& facets) {
  OpenFacets result;
  std::vector<Facet> open(facets.rbegin(), facets.rend());
  std::set<std::string> seen;
  while (!open.empty()) {
    Facet facet = open.back();
    open.pop_back();
    SPARROW_TRY(document.spend(4 + facet.schema.size() / 8));
    if (!seen.insert(facet.key()).second) continue;
    if (seen.size() > kMaxFacets) return refuse(facet, "allOf", "joins too many schemas");
    if (facet.schema.is_bool()) {
      result.never |= !facet.schema.as_bool().value();
      continue;
    }
    if (!facet.schema.is_object())
      return Error{Errc::kInvalidArgument, strf("the schema at {} is no object", excerpt(facet.pointer))};
    if (!facet.opened) {
      SPARROW_TRY(check_keywords(facet));
      if (const auto reference = member(facet.schema, "$ref")) {
        if (!reference->is_string()) return refuse(facet, "$ref", "is no text");
        open.push_back(SPARROW_TRY(document.resolve(facet, std::string(reference->string_view()))));
      }
      if (const auto all = member(facet.schema, "allOf"))
        for (size_t i = all->size(); i-- > 0;) open.push_back(part_of(facet, "allOf", std::to_string(i)));
      facet.opened = true;
      if (!seen.insert(facet.key()).second) continue;
    }
    result.facets.push_back(std::move(facet));
  }
  std::sort(result.facets.begin(), result.facets.end(),
            [](const Facet& a, const Facet& b) { return a.pointer < b.pointer; });
  return result;
}

Result<unsigned> types_of(const Facets& facets) {
  constexpr std::pair<std::string_view, unsigned> kNames[] = {
      {"null", kNull},     {"boolean", kBoolean}, {"object", kObject}, {"array", kArray},
      {"number", kNumber}, {"integer", kInteger}, {"string", kString}};
  unsigned all = kNull | kBoolean | kObject | kArray | kNumber | kInteger | kString;
  for (const Facet& facet : facets) {
    const auto type = member(facet.schema, "type");
    if (!type) continue;
    unsigned here = 0;
    const auto add = [&](const Json& name) {
      for (const auto& [known, bit] : kNames)
        if (name.is_string() && name.string_view() == known)
          return here |= bit | (bit == kNumber ? kInteger : bit), true;
      return false;
    };
    bool known = true;
    if (type->is_array())
      for (size_t i = 0; i < type->size(); ++i) known &= add(type->element(i));
    else
      known = add(*type);
    if (!known) return refuse(facet, "type", strf("is {}", type->brief()));
    if (const auto nullable = member(facet.schema, "nullable");
        nullable && nullable->is_bool() && nullable->as_bool().value())
      here |= kNull;
    all &= here;
  }
  return all;
}

namespace {

Result<std::optional<int64_t>> tightest(const Facets& facets, std::string_view keyword, bool want_larger) {
  std::optional<int64_t> best;
  for (const Facet& facet : facets) {
    const auto found = member(facet.schema, keyword);
    if (!found) continue;
    const auto value = found->as_int(0, INT64_MAX);
    if (!value.ok()) return refuse(facet, keyword, strf("is {}", found->brief()));
    if (!best || (value.value() > *best) == want_larger) best = value.value();
  }
  return best;
}

}  // namespace

Result<std::optional<int64_t>> largest(const Facets& facets, std::string_view keyword) {
  return tightest(facets, keyword, true);
}

Result<std::optional<int64_t>> smallest(const Facets& facets, std::string_view keyword) {
  return tightest(facets, keyword, false);
}

}  // namespace sparrow
