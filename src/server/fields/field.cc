// SPDX-License-Identifier: Apache-2.0
#include "server/fields/field.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/strf.h"
#include "base/text/suggest.h"

namespace sparrow {
namespace {

using Type = Field::Type;

// What is longer is no slip of the finger.
constexpr size_t kMaxNameBytes = 64;

Error unknown_member(const Json& member, std::string_view key, std::span<const std::string> known,
                     std::string_view what) {
  const std::string nearest = key.size() > kMaxNameBytes ? "" : nearest_word(key, known);
  return member.error(
      strf("is not a field of {}{}", what, nearest.empty() ? "" : strf(" (did you mean {}?)", nearest)));
}

// "must be 1: use n"
Error refuse(const Json& value, const Field& field, const std::string& expectation) {
  return value.error(field.reason.empty() ? expectation : strf("{}: {}", expectation, field.reason));
}

Status check_integer(const Json& value, const Field& field) {
  using Limits = std::numeric_limits<int64_t>;
  const auto bound = [](double wanted, int64_t most) {
    return std::abs(wanted) < 0x1p62 ? static_cast<int64_t>(wanted) : most;
  };
  const auto read = value.as_int(bound(field.min, Limits::min()), bound(field.max, Limits::max()));
  if (read.ok()) return Ok{};
  if (field.min == field.max) return refuse(value, field, strf("must be {}", field.min));
  return read.error();
}

Status check_number(const Json& value, const Field& field) {
  const double number = SPARROW_TRY(value.as_number());
  if (number >= field.min && number <= field.max) return Ok{};
  if (field.min == field.max) return refuse(value, field, strf("must be {}", field.min));
  return refuse(value, field, strf("must be a number from {} to {}", field.min, field.max));
}

// Of "a|b|c".
std::vector<std::string> words_of(std::string_view values) {
  std::vector<std::string> words;
  while (!values.empty()) {
    const std::string_view word = values.substr(0, values.find('|'));
    words.emplace_back(word);
    values.remove_prefix(std::min(values.size(), word.size() + 1));
  }
  return words;
}

Status check_word(const Json& value, const Field& field, std::string_view word) {
  if (field.values.empty()) return Ok{};
  std::string list;
  for (const std::string& known : words_of(field.values)) {
    if (known == word) return Ok{};
    list += (list.empty() ? "" : ", ") + known;
  }
  return refuse(value, field, strf("must be {}{}", list.find(',') == list.npos ? "" : "one of ", list));
}

Status check_field(const Json& value, const Field& field) {
  switch (field.type) {
    case Type::kBool:
      return check_word(value, field, SPARROW_TRY(value.as_bool()) ? "true" : "false");
    case Type::kInteger:
      return check_integer(value, field);
    case Type::kNumber:
      return check_number(value, field);
    case Type::kString:
      return check_word(value, field, SPARROW_TRY(value.as_string()));
    case Type::kObject:
      return value.expect_object();
    case Type::kList:
    case Type::kTokenIds:
      return value.expect_array();
    case Type::kAny:
      return Ok{};
    case Type::kRefused:
      return value.error(field.reason);
  }
  return Ok{};
}

}  // namespace

bool is_nothing(const Json& value) {
  const bool is_list = value.is_object() || value.is_array();
  return value.is_null() || (is_list && value.size() == 0) ||
         (value.is_string() && value.string_view().empty());
}

Status check_fields(const Json& object, std::initializer_list<std::span<const Field>> tables,
                    std::string_view what) {
  SPARROW_TRY(object.expect_object());
  const auto find = [&tables](std::string_view key) -> const Field* {
    for (const std::span<const Field> table : tables)
      for (const Field& field : table)
        if (field.name == key) return &field;
    return nullptr;
  };
  for (size_t i = 0; i < object.size(); ++i) {
    const Json member = object.member(i);
    if (member.is_null()) continue;
    if (const Field* const field = find(object.key(i))) {
      SPARROW_TRY(check_field(member, *field));
      continue;
    }
    std::vector<std::string> names;
    for (const std::span<const Field> table : tables)
      for (const Field& field : table)
        if (field.type != Type::kRefused) names.emplace_back(field.name);
    return unknown_member(member, object.key(i), names, what);
  }
  return Ok{};
}

Status check_members(const Json& object, std::span<const std::string_view> known, std::string_view what) {
  SPARROW_TRY(object.expect_object());
  for (size_t i = 0; i < object.size(); ++i) {
    const std::string_view key = object.key(i);
    if (object.member(i).is_null() || std::find(known.begin(), known.end(), key) != known.end()) continue;
    return unknown_member(object.member(i), key, std::vector<std::string>(known.begin(), known.end()), what);
  }
  return Ok{};
}

}  // namespace sparrow
