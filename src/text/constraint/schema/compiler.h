// SPDX-License-Identifier: Apache-2.0
// SchemaCompiler: what add_schema() is made of.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "text/constraint/pattern.h"
#include "text/constraint/regex/code_points.h"
#include "text/constraint/schema/facets.h"
#include "text/constraint/schema/json_schema.h"

namespace sparrow {

class SchemaCompiler {
 public:
  SchemaCompiler(Grammar& grammar, const Json& root, ValueStyle style);

  Result<NodeId> value(const Facets& facets);
  Result<NodeId> root();
  NodeId any_object();

 private:
  // schema_values.cc
  Result<NodeId> define(int rule, const Facets& facets);
  Result<NodeId> open_value(const Facets& facets);
  Result<std::optional<NodeId>> alternatives(const Facets& facets, std::string_view keyword);
  Status check_apart(const Facet& facet, const std::vector<Facets>& ways);
  Result<bool> apart(const OpenFacets& left, const OpenFacets& right, int depth);
  Result<NodeId> typed(const Facets& facets, unsigned types);
  Result<NodeId> number(const Facets& facets, bool whole);

  // schema_listed.cc: enum and const
  Result<std::optional<NodeId>> listed(const Facets& facets);
  Result<std::vector<Json>> listed_values(const Facets& facets);
  Result<bool> fits(const Json& value, const Facets& facets, int depth);
  Result<bool> lists_value(const Facets& facets, const Json& value);
  Result<bool> fits_object(const Json& value, const Facets& facets, int depth);
  Result<bool> fits_array(const Json& value, const Facets& facets, int depth);
  Result<bool> fits_string(std::string_view text, const Facets& facets);
  Result<bool> fits_number(const Json& value, const Facets& facets);
  Result<bool> matches(const Facet& facet, std::string_view keyword, const std::string& pattern,
                       std::string_view text);
  static void write_tool_text(const Json& value, std::string& out);

  // schema_strings.cc
  Result<NodeId> text(const Facets& facets, Spelling spelling);
  Result<NodeId> string(const Facets& facets);
  NodeId any_string();
  NodeId any_tool_text();
  NodeId json_char();

  // schema_containers.cc
  struct Member;
  struct KeyClass;
  Result<NodeId> object(const Facets& facets);
  Result<std::optional<NodeId>> object_as_json(const Facets& facets);
  Result<bool> allows_name(const Facets& facets, const std::string& name);
  Result<std::vector<Member>> members(const Facets& facets);
  Result<Facets> member_facets(const Facets& facets, const std::string& name);
  Result<std::vector<KeyClass>> other_members(const Facets& facets, const std::vector<Member>& named);
  Result<NodeId> array(const Facets& facets);
  Result<Facets> item_facets(const Facets& facets, size_t index);
  NodeId any_value();

  Grammar& g_;
  SchemaDocument document_;
  ValueStyle style_;
  Spelling spelling_;   // of names
  NodeId gap_, space_;  // white space between members, and after a colon
  std::unordered_map<std::string, int> rules_;
  std::map<std::string, Pattern> patterns_;
  std::unordered_map<std::string, std::unordered_set<std::string>> enums_;  // by pointer, as canonical text
  std::unique_ptr<SchemaCompiler> as_json_;  // of kToolCall: for what has no elements
  int nesting_ = 0;
  std::vector<std::pair<int, Facets>> later_;  // rules that are still to be defined
  int any_rule_ = -1;
  NodeId char_ = -1, tool_text_ = -1;
  std::string unfit_;  // the first place that has to have a value and can have none
};

}  // namespace sparrow
