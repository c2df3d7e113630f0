// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_schema.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "text/constraint/pattern.h"

namespace sparrow {
namespace {

// A schema may refer to itself, many times over: these bound the work for one question to it.
constexpr int kMaxDepth = 16;
constexpr size_t kMaxFacets = 32;
constexpr int kMaxAlternatives = 64;
// Longer ones match no name: a pattern is made anew for each name that it is held against.
constexpr size_t kMaxPatternBytes = 512, kMaxNameBytes = 256;

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Also the names that people take from other languages and databases.
ValueKind kind_of_type(std::string_view type) {
  struct Name {
    std::string_view text;
    ValueKind kind;
  };
  static constexpr std::array kNames = {
      Name{"string", ValueKind::kString},  Name{"str", ValueKind::kString},
      Name{"text", ValueKind::kString},    Name{"varchar", ValueKind::kString},
      Name{"char", ValueKind::kString},    Name{"enum", ValueKind::kString},
      Name{"double", ValueKind::kNumber},  Name{"boolean", ValueKind::kBoolean},
      Name{"bool", ValueKind::kBoolean},   Name{"binary", ValueKind::kBoolean},
      Name{"object", ValueKind::kObject},  Name{"map", ValueKind::kObject},
      Name{"array", ValueKind::kArray},    Name{"arr", ValueKind::kArray},
      Name{"sequence", ValueKind::kArray}, Name{"null", ValueKind::kNull},
  };
  static constexpr std::array kStarts = {
      Name{"int", ValueKind::kInteger},      Name{"uint", ValueKind::kInteger},
      Name{"long", ValueKind::kInteger},     Name{"short", ValueKind::kInteger},
      Name{"unsigned", ValueKind::kInteger}, Name{"num", ValueKind::kNumber},
      Name{"float", ValueKind::kNumber},     Name{"dict", ValueKind::kObject},
      Name{"list", ValueKind::kArray},
  };
  const std::string name = lower_ascii(type);
  for (const Name& known : kNames)
    if (name == known.text) return known.kind;
  for (const Name& start : kStarts)
    if (name.starts_with(start.text)) return start.kind;
  return ValueKind::kAny;
}

// %41 -> A, as in the fragment of a URI.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "#/$defs/Point", as RFC 6901 reads it, or the name of an anchor.
std::optional<Json> follow_reference(const SchemaRoot& root, std::string_view ref) {
  if (ref.empty() || ref.front() != '#') return std::nullopt;
  ref.remove_prefix(1);
  if (const auto anchor = root.anchors.find(percent_decoded(ref)); anchor != root.anchors.end())
    return anchor->second;
  Json at = root.schema;
  while (!ref.empty()) {
    if (ref.front() != '/') return std::nullopt;
    ref.remove_prefix(1);
    const std::string_view step = ref.substr(0, ref.find('/'));
    ref.remove_prefix(step.size());
    std::string key = percent_decoded(step);
    for (const auto& [escape, plain] : {std::pair("~1", "/"), std::pair("~0", "~")})
      for (size_t i = key.find(escape); i != std::string::npos; i = key.find(escape, i + 1))
        key.replace(i, 2, plain);
    size_t index = 0;
    if (at.is_array()) {
      const auto end = std::from_chars(key.data(), key.data() + key.size(), index);
      if (end.ec != std::errc() || end.ptr != key.data() + key.size() || index >= at.size())
        return std::nullopt;
      at = at.element(index);
    } else if (auto next = at.find(key)) {
      at = *next;
    } else {
      return std::nullopt;
    }
  }
  return at;
}

bool is_bool(const std::optional<Json>& value, bool wanted) {
  return value && value->is_bool() && value->as_bool().value() == wanted;
}

bool matches(std::string_view pattern, std::string_view name) {
  if (pattern.size() > kMaxPatternBytes || name.size() > kMaxNameBytes) return false;
  auto made = Pattern::create(pattern, /*search=*/true);
  return made.ok() && made.value().matches(name);
}

void find_anchors(const Json& at, std::map<std::string, Json, std::less<>>& out) {
  if (at.is_object())
    if (const auto name = at.find("$anchor"); name && name->is_string()) out.emplace(name->string_view(), at);
  for (size_t i = 0; i < at.size(); ++i) find_anchors(at.is_array() ? at.element(i) : at.member(i), out);
}

}  // namespace

SchemaRoot::SchemaRoot(const Json& whole) : schema(whole) {
  find_anchors(whole, anchors);
}

Schema::Schema(const Json& node, const SchemaRoot& root) : root_(&root) {
  add(node, 0);
}

void Schema::add(const Json& node, int depth) {
  if (!node.is_object() || depth > kMaxDepth || facets_.size() >= kMaxFacets) return;
  facets_.push_back(node);
  if (const auto ref = node.find("$ref"); ref && ref->is_string())
    if (const auto target = follow_reference(*root_, ref->string_view())) add(*target, depth + 1);
  if (const auto all = node.find("allOf"); all && all->is_array())
    for (size_t i = 0; i < all->size(); ++i) add(all->element(i), depth + 1);
}

std::optional<Json> Schema::find(std::string_view key) const {
  for (const Json& facet : facets_)
    if (auto found = facet.find(key)) return found;
  return std::nullopt;
}

std::optional<Json> Schema::union_list() const {
  for (const char* key : {"anyOf", "oneOf"})
    if (auto list = find(key); list && list->is_array() && list->size() > 0) return list;
  return std::nullopt;
}

std::vector<SchemaAlternative> Schema::alternatives() const {
  std::vector<SchemaAlternative> out;
  int budget = kMaxAlternatives;
  add_alternatives(budget, out);
  if (is_bool(find("nullable"), true)) out.push_back({ValueKind::kNull, {}});
  if (out.empty()) out.push_back({ValueKind::kAny, *this});
  return out;
}

// Itself; where anyOf or oneOf say which members there are, itself beside each of them.
std::vector<Schema> Schema::branches(int& budget) const {
  std::vector<Schema> out;
  const auto list = union_list();
  bool any_members = false;
  for (size_t i = 0; list && i < list->size() && budget > 0; ++i) {
    --budget;
    const Schema way(list->element(i), *root_);
    any_members |= way.declares_members();
    for (const Schema& inner : way.branches(budget)) {
      out.push_back(*this);
      out.back().facets_.insert(out.back().facets_.end(), inner.facets_.begin(), inner.facets_.end());
    }
  }
  if (!any_members) out = {*this};
  return out;
}

void Schema::add_type(ValueKind kind, int& budget, std::vector<SchemaAlternative>& out) const {
  if (kind != ValueKind::kObject) return out.push_back({kind, *this});
  for (const Schema& branch : branches(budget)) out.push_back({kind, branch});
}

void Schema::add_alternatives(int& budget, std::vector<SchemaAlternative>& out) const {
  if (const auto type = find("type")) {
    if (type->is_string()) add_type(kind_of_type(type->string_view()), budget, out);
    for (size_t i = 0; type->is_array() && i < std::min<size_t>(type->size(), kMaxAlternatives); ++i)
      if (const Json name = type->element(i); name.is_string())
        add_type(kind_of_type(name.string_view()), budget, out);
    return;
  }
  if (find("properties") || find("patternProperties") || find("additionalProperties"))
    return add_type(ValueKind::kObject, budget, out);
  if (find("items") || find("prefixItems")) return out.push_back({ValueKind::kArray, *this});
  if (const auto list = union_list()) {
    for (size_t i = 0; i < list->size() && budget > 0; ++i) {
      --budget;
      Schema(list->element(i), *root_).add_alternatives(budget, out);
    }
    return;
  }
  out.push_back({listed_values().empty() ? ValueKind::kAny : ValueKind::kEnum, *this});
}

std::optional<Schema> Schema::declared_property(std::string_view name) const {
  std::optional<Schema> out;
  const auto add = [&](const Json& node) {
    if (!out)
      out.emplace(node, *root_);
    else
      out->add(node, 0);
  };
  for (const Json& facet : facets_) {
    if (const auto properties = facet.find("properties"))
      if (const auto node = properties->find(name)) add(*node);
    if (const auto patterns = facet.find("patternProperties"); patterns && patterns->is_object())
      for (size_t i = 0; i < patterns->size(); ++i)
        if (matches(patterns->key(i), name)) add(patterns->member(i));
  }
  return out;
}

// {"type": "object", "anyOf": [{"properties": ...}, ...]}: a member that none but another of them declares.
std::optional<Schema> Schema::other_branch_property(std::string_view name, int& budget) const {
  const auto list = union_list();
  for (size_t i = 0; list && i < list->size() && budget > 0; ++i) {
    --budget;
    const Schema other(list->element(i), *root_);
    if (auto found = other.declared_property(name)) return found;
    if (auto found = other.other_branch_property(name, budget)) return found;
  }
  return std::nullopt;
}

bool Schema::declares_property(std::string_view name) const {
  return declared_property(name).has_value();
}

bool Schema::allows_property(std::string_view name) const {
  return !is_bool(find("additionalProperties"), false) || declares_property(name);
}

Schema Schema::property(std::string_view name) const {
  if (auto declared = declared_property(name)) return *declared;
  int budget = kMaxAlternatives;
  if (auto other = other_branch_property(name, budget)) return *other;
  if (const auto additional = find("additionalProperties")) return Schema(*additional, *root_);
  return {};
}

bool Schema::declares_members() const {
  for (const Json& facet : facets_)
    for (const char* key : {"properties", "patternProperties", "additionalProperties"})
      if (const auto members = facet.find(key); members && members->is_object() && members->size() > 0)
        return true;
  return false;
}

std::vector<std::string> Schema::required_names() const {
  std::vector<std::string> out;
  for (const Json& facet : facets_)
    if (const auto list = facet.find("required"); list && list->is_array())
      for (size_t i = 0; i < list->size(); ++i)
        if (const Json name = list->element(i); name.is_string()) out.push_back(name.as_string().value());
  return out;
}

Schema Schema::item(size_t index) const {
  const auto items = find("items");
  for (const auto& tuple : {find("prefixItems"), items})
    if (tuple && tuple->is_array() && index < tuple->size()) return Schema(tuple->element(index), *root_);
  for (const auto& rest : {items, find("additionalItems")})
    if (rest && rest->is_object()) return Schema(*rest, *root_);
  return {};
}

std::vector<Json> Schema::listed_values() const {
  std::vector<Json> out;
  for (const Json& facet : facets_)
    for (size_t i = 0; i < facet.size(); ++i) {  // not find(): const may be null
      if (facet.key(i) == "const") out.push_back(facet.member(i));
      if (const Json list = facet.member(i); facet.key(i) == "enum" && list.is_array())
        for (size_t k = 0; k < list.size(); ++k) out.push_back(list.element(k));
    }
  return out;
}

std::vector<Json> Schema::all(std::string_view keyword) const {
  std::vector<Json> out;
  for (const Json& facet : facets_)
    if (auto found = facet.find(keyword)) out.push_back(*found);
  return out;
}

Result<ToolSet> ToolSet::from_json(const Json& tools) {
  SPARROW_TRY(tools.expect_array());
  ToolSet set;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    const Json function = tool.find("function").value_or(tool);
    const std::string name = SPARROW_TRY(SPARROW_TRY(function.at("name")).as_string());
    if (const auto parameters = function.find("parameters"))
      set.parameters_.emplace(name, SchemaRoot(*parameters));
  }
  return set;
}

Schema ToolSet::parameters(std::string_view tool) const {
  const auto found = parameters_.find(tool);
  return found == parameters_.end() ? Schema() : Schema(found->second.schema, found->second);
}

}  // namespace sparrow
