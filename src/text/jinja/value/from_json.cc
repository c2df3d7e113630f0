// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value/from_json.h"

#include <charconv>
#include <vector>

namespace sparrow::jinja {

namespace {

Result<Value> number(Heap& heap, const Json& json) {
  const std::optional<std::string> digits = json.integer_digits();
  if (!digits) {
    // Python reads 1e400 as infinity; a prompt is no place for it.
    return float_value(SPARROW_TRY(json.as_number()));
  }
  int64_t value = 0;
  const auto parsed = std::from_chars(digits->data(), digits->data() + digits->size(), value);
  if (parsed.ec == std::errc()) return int_value(value);
  Value big = SPARROW_TRY(heap.string(*digits));
  big.kind = Kind::kBigInt;
  return big;
}

enum class Text { kBorrowed, kCopied };

Result<Value> text(Heap& heap, std::string_view bytes, Text mode) {
  if (mode == Text::kCopied) return heap.string(bytes);
  return text_value(bytes);
}

Result<Value> convert(Heap& heap, const Json& json, Text mode) {
  if (json.is_null()) return none_value();
  if (json.is_bool()) return bool_value(SPARROW_TRY(json.as_bool()));
  if (json.is_string()) return text(heap, json.string_view(), mode);
  if (json.is_number()) return number(heap, json);
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (size_t i = 0; i < json.size(); ++i)
      items.push_back(SPARROW_TRY(convert(heap, json.element(i), mode)));
    return heap.list(items);
  }
  std::vector<Entry> entries;
  entries.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    const Value key = SPARROW_TRY(text(heap, json.key(i), mode));
    entries.push_back({key, SPARROW_TRY(convert(heap, json.member(i), mode))});
  }
  return heap.dict(entries);
}

}  // namespace

Result<Value> from_json(Heap& heap, const Json& json) {
  return convert(heap, json, Text::kBorrowed);
}

Result<Value> owned_from_json(Heap& heap, const Json& json) {
  return convert(heap, json, Text::kCopied);
}

}  // namespace sparrow::jinja
