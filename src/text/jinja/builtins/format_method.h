// SPDX-License-Identifier: Apache-2.0
// str.format and the fields of both ways of formatting.
#pragma once

#include "text/jinja/builtins/builtins.h"

namespace sparrow::jinja {

// One value laid out as the part behind the colon in {:>8.2f} asks.
struct FieldSpec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, or 0 for the type's own
  char sign = '-';
  bool alternate = false, comma = false;
  int width = 0;
  int precision = -1;
  char type = 0;
};

Status append_formatted(Heap& heap, const Value& v, const FieldSpec& spec, TextBuilder& out);

Result<Value> brace_format(Context& context, std::string_view format, const Args& args);

}  // namespace sparrow::jinja
