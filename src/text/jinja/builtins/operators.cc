// SPDX-License-Identifier: Apache-2.0
// Arithmetic, attributes, items and slices.
#include <cmath>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/run/macro.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

Error too_large() {
  return template_error("the result of an integer operation does not fit 64 bits");
}

Error unsupported(std::string_view op, const Value& a, const Value& b) {
  for (const Value* v : {&a, &b})
    if (v->is_undefined()) return template_error(undefined_message(*v));
  if (op == "+" && a.is_string())
    return template_error(strf("can only concatenate str (not \"{}\") to str", type_name(b)));
  return template_error(
      strf("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a), type_name(b)));
}

Result<Value> integer_power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return template_error("0.0 cannot be raised to a negative power");
    return float_value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (; exponent > 0; --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) return too_large();
    if (result == 0 || result == 1) return int_value(result);
    if (result == -1) return int_value(exponent % 2 == 1 ? -1 : 1);
  }
  return int_value(result);
}

Result<Value> integer_operation(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &result)) return too_large();
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &result)) return too_large();
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &result)) return too_large();
  } else if (op == "**") {
    return integer_power(a, b);
  } else if (b == 0) {
    return template_error(op == "/" ? "division by zero" : "integer division or modulo by zero");
  } else if (op == "/") {
    return float_value(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {  // INT64_MIN / -1 overflows
    if (op == "%") return int_value(0);
    if (__builtin_sub_overflow(int64_t{0}, a, &result)) return too_large();
  } else {
    const int64_t remainder = a % b;
    const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
    result = op == "%" ? remainder + (adjust ? b : 0) : a / b - (adjust ? 1 : 0);
  }
  return int_value(result);
}

Result<Value> float_operation(std::string_view op, double a, double b) {
  if (op == "+") return float_value(a + b);
  if (op == "-") return float_value(a - b);
  if (op == "*") return float_value(a * b);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (a == 0 && b < 0) return template_error("0.0 cannot be raised to a negative power");
    if (a < 0 && std::isnan(power)) return template_error("complex numbers are not supported");
    if (std::isinf(power) && std::isfinite(a) && std::isfinite(b))
      return template_error("float result too large");
    return float_value(power);
  }
  if (b == 0) return template_error(op == "/" ? "float division by zero" : "float floor division by zero");
  if (op == "/") return float_value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == "%") return float_value(remainder == 0 ? std::copysign(0.0, b) : remainder);
  const double quotient = (a - remainder) / b;
  return float_value(quotient == 0 ? std::copysign(0.0, a / b) : std::round(quotient));
}

Result<Value> repeated(Context& context, const Value& v, int64_t count) {
  const auto n = static_cast<size_t>(std::max<int64_t>(count, 0));
  const size_t size = v.is_string() ? v.size : v.list->size;
  const size_t limit = context.heap.limits().max_output / (v.is_string() ? 1 : sizeof(Value));
  if (size != 0 && n > limit / size)
    return template_error(strf("a sequence repeated {} times is too long", n));
  if (v.is_string()) {
    TextBuilder text(context.heap);
    for (size_t i = 0; i < n && size > 0; ++i) text += v.view();
    return context.heap.string(text);
  }
  std::vector<Value> items;
  for (size_t i = 0; i < n && size > 0; ++i)
    items.insert(items.end(), v.list->view().begin(), v.list->view().end());
  return context.heap.list(items, v.list->style);
}

bool is_repeatable(const Value& v) {
  return v.is_string() || (v.is(Kind::kList) && v.list->style <= ListStyle::kTuple);
}

Result<Value> joined_lists(Context& context, const ListNode& a, const ListNode& b) {
  std::vector<Value> items(a.view().begin(), a.view().end());
  items.insert(items.end(), b.view().begin(), b.view().end());
  return context.heap.list(items, a.style);
}

struct SliceBounds {
  int64_t start, stop, step;
  int64_t count() const {
    if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
    return stop < start ? (start - stop - 1) / -step + 1 : 0;
  }
};

// Bounds are integers or None.
Result<SliceBounds> slice_bounds(int64_t size, const Value& start, const Value& stop, const Value& step) {
  SliceBounds bounds{.start = 0, .stop = 0, .step = step.is_none() ? 1 : step.as_integer()};
  if (bounds.step == 0) return template_error("slice step cannot be zero");
  bounds.step = std::max(bounds.step, -INT64_MAX);
  const bool forward = bounds.step > 0;
  const int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
  const auto clamped = [&](int64_t i) {
    if (i < 0)
      i = i < -size ? -1 : i + size;
    else if (i > size)
      i = size;
    return std::min(std::max(i, low), high);
  };
  bounds.start = start.is_none() ? (forward ? low : high) : clamped(start.as_integer());
  bounds.stop = stop.is_none() ? (forward ? high : low) : clamped(stop.as_integer());
  return bounds;
}

Result<Value> slice_string(Context& context, const Value& v, const Value& start, const Value& stop,
                           const Value& step) {
  const std::string_view text = v.view();
  SPARROW_TRY(context.heap.spend(v.size / 16));
  const SliceBounds bounds =
      SPARROW_TRY(slice_bounds(static_cast<int64_t>(num_chars(text)), start, stop, step));
  const int64_t count = bounds.count();
  if (count == 0) return text_value("");
  if (bounds.step == 1) {
    const size_t from = char_offset(text, static_cast<size_t>(bounds.start));
    const std::string_view rest = text.substr(from);
    return text_value(rest.substr(0, char_offset(rest, static_cast<size_t>(count))));
  }
  const std::span<const Value> chars = SPARROW_TRY(iterate(context.heap, v));
  TextBuilder out(context.heap);
  for (int64_t i = 0; i < count; ++i)
    out += chars[static_cast<size_t>(bounds.start + i * bounds.step)].view();
  return context.heap.string(out);
}

Result<Value> loop_attribute(const LoopNode& loop, std::string_view name) {
  const auto index = static_cast<int64_t>(loop.index), size = static_cast<int64_t>(loop.items.size());
  if (name == "index") return int_value(index + 1);
  if (name == "index0") return int_value(index);
  if (name == "revindex") return int_value(size - index);
  if (name == "revindex0") return int_value(size - index - 1);
  if (name == "first") return bool_value(index == 0);
  if (name == "last") return bool_value(index == size - 1);
  if (name == "length") return int_value(size);
  if (name == "depth") return int_value(loop.depth);
  if (name == "depth0") return int_value(loop.depth - 1);
  if (name == "previtem")
    return index > 0 ? loop.items[loop.index - 1] : undefined_value("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? loop.items[loop.index + 1] : undefined_value("there is no next item");
  return undefined_value(name, Kind::kLoop);
}

}  // namespace

Result<Value> binary(Context& context, std::string_view op, const Value& a, const Value& b) {
  if (op == "%" && a.is_string()) return percent_format(context.heap, a.view(), b);
  if (a.is_integral() && b.is_integral()) return integer_operation(op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) {
    const bool is_float = a.is(Kind::kFloat) || b.is(Kind::kFloat);
    return is_float || op == "/" ? float_operation(op, a.as_double(), b.as_double()) : too_large();
  }
  if (op == "+" && a.is_string() && b.is_string()) return context.heap.joined(a.view(), b.view());
  if (op == "+" && is_repeatable(a) && is_repeatable(b) && a.is(Kind::kList) && b.is(Kind::kList) &&
      a.list->style == b.list->style)
    return joined_lists(context, *a.list, *b.list);
  if (op == "*" && is_repeatable(a) && b.is_integral()) return repeated(context, a, b.as_integer());
  if (op == "*" && is_repeatable(b) && a.is_integral()) return repeated(context, b, a.as_integer());
  return unsupported(op, a, b);
}

Result<Value> negate(const Value& v) {
  if (v.is(Kind::kFloat)) return float_value(-v.number);
  if (v.is_integral()) return integer_operation("-", 0, v.as_integer());
  if (v.is(Kind::kBigInt)) return too_large();
  if (v.is_undefined()) return template_error(undefined_message(v));
  return template_error(strf("bad operand type for unary -: '{}'", type_name(v)));
}

Result<Value> slice(Context& context, const Value& object, const Value& start, const Value& stop,
                    const Value& step) {
  if (object.is_undefined()) return template_error(undefined_message(object));
  for (const Value* bound : {&start, &stop, &step})
    if (!bound->is_none() && !bound->is_integral()) return undefined_value("slice", object.kind);
  if (object.is_string()) return slice_string(context, object, start, stop, step);
  // What cannot be sliced has no such item, and that is undefined.
  if (!object.is(Kind::kList) || object.list->style > ListStyle::kRange)
    return undefined_value("slice", object.kind);
  const SliceBounds bounds = SPARROW_TRY(slice_bounds(object.list->size, start, stop, step));
  std::vector<Value> items;
  for (int64_t i = 0; i < bounds.count(); ++i)
    items.push_back(object.list->items[bounds.start + i * bounds.step]);
  return context.heap.list(items, object.list->style);
}

Result<Value> attribute(Context& context, const Value& object, std::string_view name) {
  if (object.is_undefined()) return template_error(undefined_message(object));
  if (object.is(Kind::kLoop)) {
    if (has_method(object, name)) return context.heap.method(object, name);
    return loop_attribute(*object.loop, name);
  }
  if (object.is(Kind::kNamespace)) {
    const Value* found = object.space->attributes.find(name);
    return found != nullptr ? *found : undefined_value(name, Kind::kNamespace);
  }
  if (object.is(Kind::kMacro) && name == "name") return text_value(object.macro->name());
  if (has_method(object, name)) return context.heap.method(object, name);
  if (is_mutating_method(object, name)) return undefined_value(name, Kind::kMethod);
  if (object.is(Kind::kDict)) {
    const Value* found = SPARROW_TRY(find_key(context.heap, *object.dict, text_value(name)));
    if (found != nullptr) return *found;
  }
  return undefined_value(name, object.kind);
}

Result<Value> item(Context& context, const Value& object, const Value& key) {
  if (object.is_undefined()) return template_error(undefined_message(object));
  if (object.is(Kind::kDict) && !(key.is(Kind::kDict) || key.is(Kind::kList))) {
    const Value* found = SPARROW_TRY(find_key(context.heap, *object.dict, key));
    if (found != nullptr) return *found;
  }
  const bool sequence =
      object.is_string() || (object.is(Kind::kList) && object.list->style <= ListStyle::kRange);
  if (sequence && key.is_integral()) {
    SPARROW_TRY(context.heap.spend(object.is_string() ? object.size / 16 : 0));
    const int64_t size = SPARROW_TRY(length(object));
    const int64_t index = key.as_integer() + (key.as_integer() < 0 ? size : 0);
    if (index < 0 || index >= size) return undefined_value("item past the end", object.kind);
    if (object.is(Kind::kList)) return object.list->items[index];
    const std::string_view rest =
        object.view().substr(char_offset(object.view(), static_cast<size_t>(index)));
    return text_value(rest.substr(0, char_bytes(rest)));
  }
  if (!key.is_string()) return undefined_value("item", object.kind);
  if (object.is(Kind::kDict) && !has_method(object, key.view()))
    return undefined_value(key.view(), Kind::kDict);
  return attribute(context, object, key.view());
}

}  // namespace sparrow::jinja
