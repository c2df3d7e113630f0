// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_schema.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace sparrow {
namespace {

// A schema may refer to itself, many times over: these bound the work for one question to it.
constexpr int kMaxDepth = 16;
constexpr size_t kMaxFacets = 32;
constexpr int kMaxAlternatives = 64;

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

// "#/$defs/Point", as RFC 6901 reads it.
std::optional<Json> follow_pointer(const Json& root, std::string_view ref) {
  if (ref.empty() || ref.front() != '#') return std::nullopt;
  ref.remove_prefix(1);
  Json at = root;
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

bool is_true(const std::optional<Json>& value) {
  if (!value) return false;
  const auto flag = value->as_bool();
  return flag.ok() && flag.value();
}

}  // namespace

Schema::Schema(const Json& node, const Json& root) : root_(root) {
  add(node, 0);
}

void Schema::add(const Json& node, int depth) {
  if (!node.is_object() || depth > kMaxDepth || facets_.size() >= kMaxFacets) return;
  facets_.push_back(node);
  if (const auto ref = node.find("$ref"); ref && ref->is_string())
    if (const auto target = follow_pointer(*root_, ref->as_string().value())) add(*target, depth + 1);
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
  if (is_true(find("nullable"))) out.push_back({ValueKind::kNull, {}});
  if (out.empty()) out.push_back({ValueKind::kAny, *this});
  return out;
}

void Schema::add_types(const Json& type, std::vector<SchemaAlternative>& out) const {
  if (type.is_string()) out.push_back({kind_of_type(type.as_string().value()), *this});
  for (size_t i = 0; type.is_array() && i < std::min<size_t>(type.size(), kMaxAlternatives); ++i)
    if (const Json name = type.element(i); name.is_string())
      out.push_back({kind_of_type(name.as_string().value()), *this});
}

void Schema::add_alternatives(int& budget, std::vector<SchemaAlternative>& out) const {
  if (const auto type = find("type")) return add_types(*type, out);
  if (find("properties") || find("additionalProperties")) return out.push_back({ValueKind::kObject, *this});
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

std::optional<Schema> Schema::declared_property(std::string_view name, int& budget) const {
  std::optional<Schema> out;
  for (const Json& facet : facets_) {
    const auto properties = facet.find("properties");
    if (!properties) continue;
    const auto node = properties->find(name);
    if (!node) continue;
    if (!out)
      out.emplace(*node, *root_);
    else
      out->add(*node, 0);
  }
  const auto list = union_list();
  // {"type": "object", "anyOf": [{"properties": ...}, ...]}
  for (size_t i = 0; !out && list && i < list->size() && budget > 0; ++i) {
    --budget;
    out = Schema(list->element(i), *root_).declared_property(name, budget);
  }
  return out;
}

bool Schema::declares_property(std::string_view name) const {
  int budget = kMaxAlternatives;
  return declared_property(name, budget).has_value();
}

Schema Schema::property(std::string_view name) const {
  int budget = kMaxAlternatives;
  if (auto declared = declared_property(name, budget)) return *declared;
  if (const auto additional = find("additionalProperties")) return Schema(*additional, *root_);
  return {};
}

bool Schema::declares_members() const {
  for (const Json& facet : facets_)
    for (const char* key : {"properties", "additionalProperties"})
      if (const auto members = facet.find(key); members && members->is_object() && members->size() > 0)
        return true;
  return false;
}

void Schema::add_property_names(int& budget, std::vector<std::string>& out) const {
  for (const Json& facet : facets_)
    if (const auto properties = facet.find("properties"); properties && properties->is_object())
      for (size_t i = 0; i < properties->size(); ++i) out.emplace_back(properties->key(i));
  const auto list = union_list();
  for (size_t i = 0; list && i < list->size() && budget > 0; ++i) {
    --budget;
    Schema(list->element(i), *root_).add_property_names(budget, out);
  }
}

std::vector<std::string> Schema::property_names() const {
  std::vector<std::string> out;
  int budget = kMaxAlternatives;
  add_property_names(budget, out);
  return out;
}

std::vector<std::string> Schema::required_names() const {
  std::vector<std::string> out;
  for (const Json& facet : facets_)
    if (const auto list = facet.find("required"); list && list->is_array())
      for (size_t i = 0; i < list->size(); ++i)
        if (const Json name = list->element(i); name.is_string()) out.push_back(name.as_string().value());
  return out;
}

bool Schema::allows_other_members() const {
  const auto additional = find("additionalProperties");
  return is_true(additional) || (additional && additional->is_object()) || find("patternProperties");
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

Result<ToolSet> ToolSet::from_json(const Json& tools) {
  SPARROW_TRY(tools.expect_array());
  ToolSet set;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json tool = tools.element(i);
    SPARROW_TRY(tool.expect_object());
    const Json function = tool.find("function").value_or(tool);
    const std::string name = SPARROW_TRY(SPARROW_TRY(function.at("name")).as_string());
    const auto parameters = function.find("parameters");
    set.parameters_.emplace(name, parameters ? Schema(*parameters, *parameters) : Schema());
  }
  return set;
}

Schema ToolSet::parameters(std::string_view tool) const {
  const auto found = parameters_.find(tool);
  return found == parameters_.end() ? Schema() : found->second;
}

}  // namespace sparrow
