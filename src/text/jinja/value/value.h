// SPDX-License-Identifier: Apache-2.0
// Value: what template expressions compute with, Python's types as far as chat templates see them. Values are
// plain handles into a Heap (or into text that outlives the rendering) and die with it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sparrow::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kBigInt,  // an integer beyond 64 bits: carried and printed with all its digits, not computed with
  kFloat,
  kString,
  kList,  // every sequence that is not a string, see ListStyle
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kFunction,  // a global such as range
  kMethod,    // an object and the name of one of its methods
};

enum class ListStyle : uint8_t { kList, kTuple, kRange, kGenerator, kDictKeys, kDictValues, kDictItems };

struct ListNode;
struct DictNode;
struct NamespaceNode;
struct LoopNode;
struct MacroNode;
struct MethodNode;

struct Value {
  Kind kind = Kind::kUndefined;
  Kind owner = Kind::kUndefined;  // of an undefined attribute: what was asked; kUndefined for a plain name
  uint32_t size = 0;              // bytes of text
  union {
    int64_t integer = 0;
    bool boolean;
    double number;
    const char* text;  // a string, digits of a big integer, the name of a function or of what is undefined
    ListNode* list;
    DictNode* dict;
    NamespaceNode* space;
    LoopNode* loop;
    const MacroNode* macro;
    const MethodNode* method;
  };

  bool is(Kind k) const { return kind == k; }
  bool is_undefined() const { return kind == Kind::kUndefined; }
  bool is_none() const { return kind == Kind::kNone; }
  bool is_string() const { return kind == Kind::kString; }
  bool is_integral() const { return kind == Kind::kBool || kind == Kind::kInt; }
  bool is_number() const { return is_integral() || kind == Kind::kBigInt || kind == Kind::kFloat; }
  std::string_view view() const { return {text, size}; }
  int64_t as_integer() const { return kind == Kind::kBool ? boolean : integer; }
  double as_double() const;
};

struct Entry {
  Value key, value;
};

struct ListNode {
  Value* items = nullptr;
  uint32_t size = 0;
  ListStyle style = ListStyle::kList;
  int depth = 1;  // levels of containers; bounded, so that walks over values need no stack of their own

  std::span<const Value> view() const { return {items, size}; }
};

struct DictNode {
  Entry* entries = nullptr;
  uint32_t size = 0;
  int depth = 1;

  std::span<const Entry> view() const { return {entries, size}; }
};

// Names bound to values, in the order of their first binding.
struct Bindings {
  Entry* entries = nullptr;
  uint32_t size = 0, capacity = 0;

  std::span<const Entry> view() const { return {entries, size}; }
  const Value* find(std::string_view name) const;
};

struct NamespaceNode {
  Bindings attributes;
};

struct MethodNode {
  Value self;
  std::string_view name;
};

inline Value none_value() {
  Value v;
  v.kind = Kind::kNone;
  return v;
}
inline Value bool_value(bool b) {
  Value v;
  v.kind = Kind::kBool;
  v.boolean = b;
  return v;
}
inline Value int_value(int64_t i) {
  Value v;
  v.kind = Kind::kInt;
  v.integer = i;
  return v;
}
inline Value float_value(double d) {
  Value v;
  v.kind = Kind::kFloat;
  v.number = d;
  return v;
}
// The text is borrowed: it must outlive the value.
Value text_value(std::string_view text, Kind kind = Kind::kString);
Value undefined_value(std::string_view name, Kind owner = Kind::kUndefined);

// As Python and jinja2 call the type in messages: "int", "dict object".
std::string_view type_name(const Value& v);
// "'user' is undefined".
std::string undefined_message(const Value& v);

Error template_error(std::string message);

}  // namespace sparrow::jinja
