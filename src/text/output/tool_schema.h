// SPDX-License-Identifier: Apache-2.0
// What a tool's JSON schema says about a value: only as much as is needed to turn text into typed JSON.
// Nothing is validated; a schema that makes no sense says nothing, and its values stay strings.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"

namespace sparrow {

enum class ValueKind {
  kString,
  kInteger,
  kNumber,
  kBoolean,
  kObject,
  kArray,
  kNull,
  kEnum,  // const or enum without a type: one of the listed values, or a string
  kAny,   // nothing is known
};

struct SchemaAlternative;

// Where references look. Borrows the request's document.
struct SchemaRoot {
  explicit SchemaRoot(const Json& whole);
  Json schema;
  std::map<std::string, Json, std::less<>> anchors;
};

// All schema objects that hold for one value at the same time: its own, what $ref points to, the members of
// allOf. Borrows the root.
class Schema {
 public:
  Schema() = default;  // says nothing
  Schema(const Json& node, const SchemaRoot& root);

  // The types a value may have, in the order of the schema; {kAny} where nothing is known. Never empty.
  std::vector<SchemaAlternative> alternatives() const;

  // Of an object's member: properties and patternProperties, then additionalProperties.
  Schema property(std::string_view name) const;
  bool declares_property(std::string_view name) const;
  // Not where only declared members may be there.
  bool allows_property(std::string_view name) const;
  // Whether anything at all is said about members.
  bool declares_members() const;
  // Of an object: the members that must be there.
  std::vector<std::string> required_names() const;
  // Of an array's element: prefixItems (or a list in items), then items.
  Schema item(size_t index) const;
  // The values of enum and const.
  std::vector<Json> listed_values() const;
  // What each of the schema objects says under this keyword.
  std::vector<Json> all(std::string_view keyword) const;

 private:
  void add(const Json& node, int depth);
  void add_alternatives(int& budget, std::vector<SchemaAlternative>& out) const;
  void add_type(ValueKind kind, int& budget, std::vector<SchemaAlternative>& out) const;
  std::optional<Json> find(std::string_view key) const;
  std::optional<Json> union_list() const;
  std::vector<Schema> branches(int& budget) const;
  std::optional<Schema> declared_property(std::string_view name) const;
  std::optional<Schema> other_branch_property(std::string_view name, int& budget) const;

  std::vector<Json> facets_;
  const SchemaRoot* root_ = nullptr;
};

struct SchemaAlternative {
  ValueKind kind;
  Schema schema;
};

// The tools of one request. Borrows the request's document; schemas borrow the set.
class ToolSet {
 public:
  ToolSet() = default;
  // A list in OpenAI's form ({"type": "function", "function": {...}}) or of the bare function objects.
  static Result<ToolSet> from_json(const Json& tools);

  // Of the object that holds all parameters; says nothing where the tool is unknown.
  Schema parameters(std::string_view tool) const;

 private:
  std::map<std::string, SchemaRoot, std::less<>> parameters_;
};

}  // namespace sparrow
