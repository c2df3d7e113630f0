// SPDX-License-Identifier: Apache-2.0
// Facets: schema objects that hold for one value at the same time, found by following references and allOf.
// What they say together is asked here, keyword by keyword.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "base/result.h"

namespace sparrow {

// What a schema speaks of.
enum class Role : char {
  kValue = 'v',
  kArguments = 'c',  // all arguments of a call: an object, without anything around its members
  kName = 'n',       // a member's name, without quotes
};

struct Facet {
  Json schema;
  std::string pointer;     // "#/properties/a"
  bool opened = false;     // $ref and allOf have been followed
  bool any_taken = false;  // an alternative of anyOf stands beside it
  bool one_taken = false;  // the same for oneOf
  Role role = Role::kValue;
  std::string key() const {
    return pointer + (role == Role::kValue ? "" : std::string(1, static_cast<char>(role))) +
           (opened ? "!" : "") + (any_taken ? "a" : "") + (one_taken ? "o" : "");
  }
};
using Facets = std::vector<Facet>;

// The member of a schema, also where it is null.
std::optional<Json> member(const Json& object, std::string_view key);
std::string below(const std::string& pointer, std::string_view key);
Facet part_of(const Facet& facet, std::string_view key);
Facet part_of(const Facet& facet, std::string_view key, std::string_view inner);
// Of all of them.
Role role_of(const Facets& facets);
Error refuse(const Facet& facet, std::string_view keyword, std::string_view why);

// All schemas that a schema refers to, and what may be spent on reading them.
class SchemaDocument {
 public:
  explicit SchemaDocument(const Json& root) : root_(root) {}
  Facet root() const { return {root_, "#"}; }
  Result<Facet> resolve(const Facet& from, const std::string& reference);
  // So much work is to be done, in microseconds or less. Error: the schema takes more than any may.
  Status spend(size_t work);

 private:
  Status find_anchors(const Facet& at, bool is_schema);

  Json root_;
  std::optional<std::map<std::string, Facet, std::less<>>> anchors_;  // once one is asked for
  size_t spent_ = 0;
};

struct OpenFacets {
  Facets facets;       // objects, with nothing left to follow but alternatives
  bool never = false;  // one of them is false
};

// Follows references and allOf, and refuses keywords that are not known.
Result<OpenFacets> open_facets(SchemaDocument& document, const Facets& facets);

// The JSON types, as bits; kInteger without kNumber: whole numbers only.
enum TypeBits : unsigned {
  kNull = 1,
  kBoolean = 2,
  kObject = 4,
  kArray = 8,
  kNumber = 16,
  kInteger = 32,
  kString = 64
};
Result<unsigned> types_of(const Facets& facets);

// nullopt: nothing is said. The tightest of all facets.
Result<std::optional<int64_t>> largest(const Facets& facets, std::string_view keyword);
Result<std::optional<int64_t>> smallest(const Facets& facets, std::string_view keyword);

}  // namespace sparrow
