// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value/compare.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/strf.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

int sign_of(double a, double b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

// Exact also where the integer has more digits than a double.
int compare_int_double(int64_t i, double d) {
  if (d >= 0x1p63) return -1;
  if (d < -0x1p63) return 1;
  const double whole = std::trunc(d);
  const auto j = static_cast<int64_t>(whole);
  if (i != j) return i < j ? -1 : 1;
  return sign_of(0.0, d - whole);
}

int compare_big(std::string_view a, std::string_view b) {
  const bool negative = a.front() == '-';
  if (negative != (b.front() == '-')) return negative ? -1 : 1;
  const int longer = a.size() != b.size() ? (a.size() < b.size() ? -1 : 1) : a.compare(b);
  return negative ? -longer : longer;
}

// Neither is NaN.
int compare_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    const int64_t x = a.as_integer(), y = b.as_integer();
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (a.is(Kind::kBigInt) && b.is(Kind::kBigInt)) return compare_big(a.view(), b.view());
  if (a.is_integral() && b.is(Kind::kFloat)) return compare_int_double(a.as_integer(), b.number);
  if (a.is(Kind::kFloat) && b.is_integral()) return -compare_int_double(b.as_integer(), a.number);
  return sign_of(a.as_double(), b.as_double());
}

bool is_nan(const Value& v) {
  return v.is(Kind::kFloat) && std::isnan(v.number);
}

Result<bool> equal_lists(Heap& heap, const ListNode& a, const ListNode& b) {
  if (&a == &b) return true;
  if (a.style != b.style || a.size != b.size || a.style == ListStyle::kGenerator) return false;
  for (uint32_t i = 0; i < a.size; ++i)
    if (!SPARROW_TRY(equal(heap, a.items[i], b.items[i]))) return false;
  return true;
}

Result<bool> equal_dicts(Heap& heap, const DictNode& a, const DictNode& b) {
  if (&a == &b) return true;
  if (a.size != b.size) return false;
  for (const Entry& entry : a.view()) {
    const Value* other = SPARROW_TRY(find_key(heap, b, entry.key));
    if (other == nullptr || !SPARROW_TRY(equal(heap, entry.value, *other))) return false;
  }
  return true;
}

}  // namespace

bool is_true(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.boolean;
    case Kind::kInt:
      return v.integer != 0;
    case Kind::kFloat:
      return v.number != 0;
    case Kind::kString:
      return v.size != 0;
    case Kind::kList:
      return v.list->size != 0 || v.list->style == ListStyle::kGenerator;
    case Kind::kDict:
      return v.dict->size != 0;
    default:
      return true;
  }
}

Result<bool> equal(Heap& heap, const Value& a, const Value& b) {
  SPARROW_TRY(heap.spend(1));
  if (a.is_number() && b.is_number()) return !is_nan(a) && !is_nan(b) && compare_numbers(a, b) == 0;
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      SPARROW_TRY(heap.spend(std::min(a.size, b.size) / 256));
      return a.view() == b.view();
    case Kind::kList:
      return equal_lists(heap, *a.list, *b.list);
    case Kind::kDict:
      return equal_dicts(heap, *a.dict, *b.dict);
    case Kind::kFunction:
      return a.view() == b.view();
    case Kind::kNamespace:
      return a.space == b.space;
    default:
      return a.text == b.text;
  }
}

Result<int> order(Heap& heap, const Value& a, const Value& b, std::string_view op) {
  SPARROW_TRY(heap.spend(1));
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) return template_error(undefined_message(*v));
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  // UTF-8 sorts as its code points do.
  if (a.is_string() && b.is_string()) {
    SPARROW_TRY(heap.spend(std::min(a.size, b.size) / 256));
    return a.view().compare(b.view());
  }
  const bool sequences = a.is(Kind::kList) && b.is(Kind::kList) && a.list->style == b.list->style &&
                         (a.list->style == ListStyle::kList || a.list->style == ListStyle::kTuple);
  if (!sequences)
    return template_error(
        strf("'{}' not supported between instances of '{}' and '{}'", op, type_name(a), type_name(b)));
  const uint32_t common = std::min(a.list->size, b.list->size);
  for (uint32_t i = 0; i < common; ++i)
    if (!SPARROW_TRY(equal(heap, a.list->items[i], b.list->items[i])))
      return order(heap, a.list->items[i], b.list->items[i], op);
  return a.list->size < b.list->size ? -1 : a.list->size > b.list->size ? 1 : 0;
}

Result<bool> contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string())
      return template_error(strf("'in <string>' requires string as left operand, not {}", type_name(item)));
    SPARROW_TRY(heap.spend(container.size / 64));
    return container.view().find(item.view()) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) return SPARROW_TRY(find_key(heap, *container.dict, item)) != nullptr;
  if (container.is_undefined()) return false;
  if (!container.is(Kind::kList))
    return template_error(strf("argument of type '{}' is not iterable", type_name(container)));
  for (const Value& candidate : SPARROW_TRY(iterate(heap, container)))
    if (SPARROW_TRY(equal(heap, candidate, item))) return true;
  return false;
}

Result<Value*> find_key(Heap& heap, const DictNode& dict, const Value& key) {
  if (key.is(Kind::kDict) || (key.is(Kind::kList) && key.list->style == ListStyle::kList))
    return template_error(strf("unhashable type: '{}'", type_name(key)));
  if (key.is_string()) {
    SPARROW_TRY(heap.spend(dict.size / 16));
    for (uint32_t i = 0; i < dict.size; ++i)
      if (dict.entries[i].key.is_string() && dict.entries[i].key.view() == key.view())
        return &dict.entries[i].value;
    return static_cast<Value*>(nullptr);
  }
  for (uint32_t i = 0; i < dict.size; ++i)
    if (SPARROW_TRY(equal(heap, dict.entries[i].key, key))) return &dict.entries[i].value;
  return static_cast<Value*>(nullptr);
}

Result<std::span<const Value>> iterate(Heap& heap, const Value& v) {
  if (v.is_undefined()) return std::span<const Value>();
  if (v.is(Kind::kList)) {
    const std::span<const Value> items = v.list->view();
    if (v.list->style == ListStyle::kGenerator) v.list->size = 0;
    return items;
  }
  std::vector<Value> items;
  if (v.is(Kind::kDict)) {
    for (const Entry& entry : v.dict->view()) items.push_back(entry.key);
  } else if (v.is_string()) {
    SPARROW_TRY(heap.spend(v.size));
    for (std::string_view rest = v.view(); !rest.empty();) {
      const size_t bytes = char_bytes(rest);
      items.push_back(text_value(rest.substr(0, bytes)));
      rest.remove_prefix(bytes);
    }
  } else {
    return template_error(strf("'{}' object is not iterable", type_name(v)));
  }
  const Value list = SPARROW_TRY(heap.list(items));
  return std::span<const Value>(list.list->view());
}

Result<int64_t> length(const Value& v) {
  if (v.is_undefined()) return 0;
  if (v.is_string()) return static_cast<int64_t>(num_chars(v.view()));
  if (v.is(Kind::kDict)) return static_cast<int64_t>(v.dict->size);
  if (v.is(Kind::kList) && v.list->style != ListStyle::kGenerator) return static_cast<int64_t>(v.list->size);
  return template_error(strf("object of type '{}' has no len()", type_name(v)));
}

}  // namespace sparrow::jinja
