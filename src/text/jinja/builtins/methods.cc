// SPDX-License-Identifier: Apache-2.0
// Methods of dicts, lists and the loop variable, and which methods there are. Those of strings are in
// string_methods.cc.
#include <algorithm>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/run/macro.h"
#include "text/jinja/value/compare.h"

namespace sparrow::jinja {

namespace {

using Names = std::span<const std::string_view>;

constexpr std::string_view kStringMethods[] = {
    "capitalize", "casefold",  "center",     "count",        "endswith",     "expandtabs", "find",
    "format",     "index",     "isalnum",    "isalpha",      "isascii",      "isdecimal",  "isdigit",
    "islower",    "isnumeric", "isspace",    "istitle",      "isupper",      "join",       "ljust",
    "lower",      "lstrip",    "partition",  "removeprefix", "removesuffix", "replace",    "rfind",
    "rindex",     "rjust",     "rpartition", "rsplit",       "rstrip",       "split",      "splitlines",
    "startswith", "strip",     "swapcase",   "title",        "upper",        "zfill"};
constexpr std::string_view kDictMethods[] = {"copy", "get", "items", "keys", "values"};
constexpr std::string_view kListMethods[] = {"copy", "count", "index"};
constexpr std::string_view kLoopMethods[] = {"changed", "cycle"};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListMutators[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};

bool has(Names names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_plain_list(const Value& v) {
  return v.is(Kind::kList) && v.list->style == ListStyle::kList;
}

Result<Value> call_dict_method(Context& context, const DictNode& dict, std::string_view name,
                               const Args& args) {
  if (name == "get") {
    const auto bound = SPARROW_TRY(args.bind("get", {"key", "default"}, 1));
    const Value* found = SPARROW_TRY(find_key(context.heap, dict, *bound[0]));
    return found != nullptr ? *found : bound[1].value_or(none_value());
  }
  SPARROW_TRY(args.bind(name, {}));
  if (name == "copy") return context.heap.dict(dict.view());
  std::vector<Value> out;
  for (const Entry& entry : dict.view()) {
    if (name == "keys") {
      out.push_back(entry.key);
    } else if (name == "values") {
      out.push_back(entry.value);
    } else {
      out.push_back(SPARROW_TRY(context.heap.list({entry.key, entry.value}, ListStyle::kTuple)));
    }
  }
  const ListStyle style = name == "keys"     ? ListStyle::kDictKeys
                          : name == "values" ? ListStyle::kDictValues
                                             : ListStyle::kDictItems;
  return context.heap.list(out, style);
}

Result<Value> call_list_method(Context& context, const ListNode& list, std::string_view name,
                               const Args& args) {
  if (name == "copy") {
    SPARROW_TRY(args.bind(name, {}));
    return context.heap.list(list.view(), list.style);
  }
  const auto bound = SPARROW_TRY(args.bind(name, {"value"}, 1));
  int64_t count = 0;
  for (uint32_t i = 0; i < list.size; ++i) {
    if (!SPARROW_TRY(equal(context.heap, list.items[i], *bound[0]))) continue;
    if (name == "index") return int_value(i);
    ++count;
  }
  if (name == "index") return template_error("the value is not in the list");
  return int_value(count);
}

Result<Value> call_loop_method(Context& context, LoopNode& loop, std::string_view name, const Args& args) {
  if (!args.named.empty()) return template_error(strf("loop.{}() takes no keyword arguments", name));
  if (name == "cycle") {
    if (args.positional.empty()) return template_error("no items for cycling given");
    return args.positional[loop.index % args.positional.size()];
  }
  const Value now = SPARROW_TRY(context.heap.list(args.positional, ListStyle::kTuple));
  const bool same = loop.has_changed && SPARROW_TRY(equal(context.heap, loop.changed, now));
  loop.changed = now;
  loop.has_changed = true;
  return bool_value(!same);
}

}  // namespace

bool has_method(const Value& object, std::string_view name) {
  switch (object.kind) {
    case Kind::kString:
      return has(kStringMethods, name);
    case Kind::kDict:
      return has(kDictMethods, name);
    case Kind::kLoop:
      return has(kLoopMethods, name);
    case Kind::kList:
      return object.list->style <= ListStyle::kTuple && has(kListMethods, name) &&
             (name != "copy" || is_plain_list(object));
    default:
      return false;
  }
}

bool is_mutating_method(const Value& object, std::string_view name) {
  if (object.is(Kind::kDict)) return has(kDictMutators, name);
  return is_plain_list(object) && has(kListMutators, name);
}

Result<Value> call_method(Context& context, const Value& object, std::string_view name, const Args& args) {
  switch (object.kind) {
    case Kind::kString:
      return call_string_method(context, object, name, args);
    case Kind::kDict:
      return call_dict_method(context, *object.dict, name, args);
    case Kind::kList:
      return call_list_method(context, *object.list, name, args);
    case Kind::kLoop:
      return call_loop_method(context, *object.loop, name, args);
    default:
      return template_error(strf("'{}' object has no method '{}'", type_name(object), name));
  }
}

}  // namespace sparrow::jinja
