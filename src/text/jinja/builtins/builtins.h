// SPDX-License-Identifier: Apache-2.0
// The filters, tests, methods and global functions that templates may use. There is nothing else they can
// reach.
#pragma once

#include <ctime>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value/heap.h"

namespace sparrow::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;

  // The arguments by the names of a function's parameters; absent ones are nullopt. Too many, unknown and
  // doubled ones are errors, as are missing ones among the first `required`.
  Result<std::vector<std::optional<Value>>> bind(std::string_view function,
                                                 std::initializer_list<std::string_view> names,
                                                 size_t required = 0) const;
};

// What builtins may use of the rendering.
struct Context {
  Heap& heap;
  std::tm now;  // for strftime_now
};

using Filter = Result<Value> (*)(Context& context, const Value& value, const Args& args);
using Test = Result<bool> (*)(Context& context, const Value& value, const Args& args);
using Function = Result<Value> (*)(Context& context, const Args& args);

// Null when there is none of that name.
Filter find_filter(std::string_view name);
Filter find_list_filter(std::string_view name);
Test find_test(std::string_view name);
Function find_function(std::string_view name);

// Whether `object.name` is a method that a template may call.
bool has_method(const Value& object, std::string_view name);
// Whether it is one that would change the object, which the sandbox does not allow.
bool is_mutating_method(const Value& object, std::string_view name);
Result<Value> call_method(Context& context, const Value& object, std::string_view name, const Args& args);
Result<Value> call_string_method(Context& context, const Value& object, std::string_view name,
                                 const Args& args);

// object.name and object[key], undefined where there is none.
Result<Value> attribute(Context& context, const Value& object, std::string_view name);
Result<Value> item(Context& context, const Value& object, const Value& key);

// Python's arithmetic; `op` is one of + - * / // % **.
Result<Value> binary(Context& context, std::string_view op, const Value& a, const Value& b);
Result<Value> negate(const Value& v);
// object[start:stop:step]; a bound that is None is left out.
Result<Value> slice(Context& context, const Value& object, const Value& start, const Value& stop,
                    const Value& step);

// The text of a string argument.
Result<std::string_view> string_argument(const Value& v, std::string_view what);
Result<int64_t> integer_argument(const Value& v, std::string_view what);

// Replaces up to `count` occurrences, all if negative, as str.replace does.
Result<Value> replaced(Context& context, std::string_view text, std::string_view from, std::string_view to,
                       int64_t count);
// Joins the items as str() prints them.
Result<Value> joined_items(Context& context, std::span<const Value> items, std::string_view separator);
// Items in the order of their keys, those without order an error; stable.
Status sort_values(Context& context, std::vector<Entry>& keyed, bool reverse);

}  // namespace sparrow::jinja
