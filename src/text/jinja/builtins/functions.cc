// SPDX-License-Identifier: Apache-2.0
// Arguments of builtins, and the global functions.
#include <algorithm>
#include <array>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

Result<std::vector<std::optional<Value>>> Args::bind(std::string_view function,
                                                     std::initializer_list<std::string_view> names,
                                                     size_t required) const {
  std::vector<std::optional<Value>> bound(names.size());
  if (positional.size() > names.size())
    return template_error(
        strf("{}() takes at most {} arguments ({} given)", function, names.size(), positional.size()));
  std::copy(positional.begin(), positional.end(), bound.begin());
  for (const auto& [name, value] : named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      return template_error(strf("{}() got an unexpected keyword argument '{}'", function, name));
    std::optional<Value>& place = bound[static_cast<size_t>(found - names.begin())];
    if (place) return template_error(strf("{}() got multiple values for argument '{}'", function, name));
    place = value;
  }
  for (size_t i = 0; i < required; ++i)
    if (!bound[i])
      return template_error(strf("{}() is missing its argument '{}'", function, names.begin()[i]));
  return bound;
}

Result<std::string_view> string_argument(const Value& v, std::string_view what) {
  if (v.is_string()) return v.view();
  if (v.is_undefined()) return template_error(undefined_message(v));
  return template_error(strf("{} must be a str, not {}", what, type_name(v)));
}

Result<int64_t> integer_argument(const Value& v, std::string_view what) {
  if (v.is_integral()) return v.as_integer();
  if (v.is_undefined()) return template_error(undefined_message(v));
  return template_error(strf("{} must be an int, not {}", what, type_name(v)));
}

namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox has the same limit

Result<Value> range(Context& context, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("range", {"start", "stop", "step"}, 1));
  int64_t start = 0;
  int64_t stop = SPARROW_TRY(integer_argument(*bound[0], "range()"));
  if (bound[1]) start = std::exchange(stop, SPARROW_TRY(integer_argument(*bound[1], "range()")));
  const int64_t step = bound[2] ? SPARROW_TRY(integer_argument(*bound[2], "range()")) : 1;
  if (step == 0) return template_error("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) == kMaxRange)
      return template_error(strf("Range too big. The sandbox blocks ranges larger than {}.", kMaxRange));
    items.push_back(int_value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return context.heap.list(items, ListStyle::kRange);
}

// The entries of dict(pairs or dict, **named).
Result<std::vector<Entry>> dict_entries(Context& context, const Args& args) {
  std::vector<Entry> entries;
  if (args.positional.size() > 1) return template_error("dict expected at most 1 argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is_undefined()) return template_error(undefined_message(source));
    if (source.is(Kind::kDict)) {
      entries.assign(source.dict->view().begin(), source.dict->view().end());
    } else {
      for (const Value& pair : SPARROW_TRY(iterate(context.heap, source))) {
        const std::span<const Value> two = SPARROW_TRY(iterate(context.heap, pair));
        if (two.size() != 2) return template_error("a dict is made of pairs");
        entries.push_back({two[0], two[1]});
      }
    }
  }
  for (const auto& [name, value] : args.named) entries.push_back({text_value(name), value});
  return entries;
}

Result<Value> make_dict(Context& context, const Args& args) {
  return context.heap.dict(SPARROW_TRY(dict_entries(context, args)));
}

Result<Value> make_namespace(Context& context, const Args& args) {
  const Value space = SPARROW_TRY(context.heap.name_space());
  for (const Entry& entry : SPARROW_TRY(dict_entries(context, args))) {
    const std::string_view name = SPARROW_TRY(string_argument(entry.key, "an attribute of a namespace"));
    if (name.starts_with('_'))
      return template_error(strf("a namespace cannot have the attribute '{}'", name));
    SPARROW_TRY(context.heap.bind(space.space->attributes, name, entry.value));
  }
  return space;
}

Result<Value> raise_exception(Context& context, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("raise_exception", {"message"}, 1));
  return template_error(std::string(SPARROW_TRY(str_view(context.heap, *bound[0]))));
}

Result<Value> strftime_now(Context& context, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("strftime_now", {"format"}, 1));
  const std::string_view format = SPARROW_TRY(string_argument(*bound[0], "the format of strftime_now"));
  constexpr size_t kMaxFormat = 1000;
  if (format.size() > kMaxFormat)
    return template_error(strf("the format of strftime_now has more than {} bytes", kMaxFormat));
  std::string out;
  for (size_t i = 0; i < format.size();) {
    const size_t bytes = format[i] == '%' && i + 1 < format.size() ? 1 + char_bytes(format.substr(i + 1)) : 1;
    const std::string part(format.substr(i, bytes));
    i += bytes;
    if (part == "%f") {
      out += "000000";  // the clock we are given has whole seconds
    } else if (bytes > 1 && part != "%z" &&
               part != "%Z") {  // without a time zone these two are empty in Python
      std::array<char, 128> text;
      out.append(text.data(), std::strftime(text.data(), text.size(), part.c_str(), &context.now));
    } else if (bytes == 1) {
      out += part;
    }
  }
  return context.heap.string(out);
}

constexpr std::pair<std::string_view, Function> kFunctions[] = {
    {"dict", make_dict}, {"namespace", make_namespace},  {"raise_exception", raise_exception},
    {"range", range},    {"strftime_now", strftime_now},
};

}  // namespace

Function find_function(std::string_view name) {
  for (const auto& [known, function] : kFunctions)
    if (known == name) return function;
  return nullptr;
}

}  // namespace sparrow::jinja
