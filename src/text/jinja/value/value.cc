// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value/value.h"

#include <charconv>

#include "base/strf.h"

namespace sparrow::jinja {

double Value::as_double() const {
  if (kind == Kind::kFloat) return number;
  if (kind != Kind::kBigInt) return static_cast<double>(as_integer());
  double d = 0;
  std::from_chars(text, text + size, d);
  return d;
}

const Value* Bindings::find(std::string_view name) const {
  for (uint32_t i = 0; i < size; ++i)
    if (entries[i].key.view() == name) return &entries[i].value;
  return nullptr;
}

Value text_value(std::string_view text, Kind kind) {
  Value v;
  v.kind = kind;
  v.size = static_cast<uint32_t>(text.size());
  v.text = text.data();
  return v;
}

Value undefined_value(std::string_view name, Kind owner) {
  Value v = text_value(name, Kind::kUndefined);
  v.owner = owner;
  return v;
}

std::string_view type_name(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kBigInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
    case Kind::kMethod:
      return "function";
    case Kind::kList:
      break;
  }
  switch (v.list->style) {
    case ListStyle::kList:
      return "list";
    case ListStyle::kTuple:
      return "tuple";
    case ListStyle::kRange:
      return "range";
    case ListStyle::kGenerator:
      return "generator";
    case ListStyle::kDictKeys:
      return "dict_keys";
    case ListStyle::kDictValues:
      return "dict_values";
    case ListStyle::kDictItems:
      return "dict_items";
  }
  return "object";
}

std::string undefined_message(const Value& v) {
  Value owner;
  owner.kind = v.owner;
  if (v.owner == Kind::kUndefined) return strf("'{}' is undefined", v.view());
  if (v.owner == Kind::kNone) return strf("'None' has no attribute '{}'", v.view());
  if (v.owner == Kind::kMethod) return strf("access to attribute '{}' is unsafe", v.view());
  const std::string_view type = v.owner == Kind::kList ? "list" : type_name(owner);
  return strf("'{} object' has no attribute '{}'", type, v.view());
}

Error template_error(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

}  // namespace sparrow::jinja
