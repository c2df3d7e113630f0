// SPDX-License-Identifier: Apache-2.0
// The fields of requests as tables: readers check bodies by the rows that /openapi.json is written from.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "base/json/json.h"
#include "base/result.h"

namespace sparrow {

struct Field {
  enum class Type {
    kBool,
    kInteger,
    kNumber,
    kString,
    kObject,
    kList,
    kTokenIds,
    kAny,      // its reader looks at it
    kRefused,  // asks for something that is not here, whatever its value
  };
  static constexpr double kMost = std::numeric_limits<double>::infinity();

  std::string_view name;
  Type type;
  double min = -kMost, max = kMost;  // of numbers
  std::string_view values = {};      // of strings and booleans, such as "low|high"; empty: all
  std::string_view reason = {};      // why other values are refused, or what to use instead
  std::string_view schema = {};      // JSON Schema, where the type does not say all
};

// What changes nothing, because all else is refused.
constexpr Field only(std::string_view name, bool value, std::string_view reason) {
  return {name, Field::Type::kBool, -Field::kMost, Field::kMost, value ? "true" : "false", reason};
}
constexpr Field only_one(std::string_view name, Field::Type type, std::string_view reason) {
  return {name, type, 1, 1, {}, reason};
}
constexpr Field one_of(std::string_view name, std::string_view values) {
  return {name, Field::Type::kString, -Field::kMost, Field::kMost, values};
}
constexpr Field refused(std::string_view name, std::string_view reason) {
  return {name, Field::Type::kRefused, -Field::kMost, Field::kMost, {}, reason};
}
constexpr Field with_schema(std::string_view name, Field::Type type, std::string_view schema) {
  return {name, type, -Field::kMost, Field::kMost, {}, {}, schema};
}

// Clients spell "absent" like this, too: null, "", [] and {}.
bool is_nothing(const Json& value);

// Error at the first member that is in none of the tables or has a value that its row does not allow; `what`
// the object is: "this request". Null is how clients spell "absent", and may be said of anything.
Status check_fields(const Json& object, std::initializer_list<std::span<const Field>> tables,
                    std::string_view what);
// The same where all that matters are the names.
Status check_members(const Json& object, std::span<const std::string_view> known, std::string_view what);

}  // namespace sparrow
