// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str() and repr(), json.dumps, and % formatting.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/value/text_builder.h"

namespace sparrow::jinja {

// The shortest digits that read back as the same double, laid out as Python does: 1.0, 1e+16, inf.
std::string float_repr(double d);

// Appends str(v), as {{ v }} prints it: an undefined value is empty.
Status append_str(Heap& heap, const Value& v, TextBuilder& out);
Status append_repr(Heap& heap, const Value& v, TextBuilder& out);
// str(v) as a value; a string is itself.
Result<Value> str_value(Heap& heap, const Value& v);
// str(v), borrowed from the value or the heap.
Result<std::string_view> str_view(Heap& heap, const Value& v);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent = {};  // one level of it; without: all on one line
  std::string item_separator = ", ", key_separator = ": ";
};
Status append_json(Heap& heap, const Value& v, const JsonStyle& style, TextBuilder& out);

// format % values, `values` a tuple, a dict, or the single value.
Result<Value> percent_format(Heap& heap, std::string_view format, const Value& values);

}  // namespace sparrow::jinja
