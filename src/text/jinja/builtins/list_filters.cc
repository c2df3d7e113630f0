// SPDX-License-Identifier: Apache-2.0
// Filters on lists and dicts.
#include <algorithm>
#include <charconv>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

// "address.city.0" of a value: each part an item or an attribute.
Result<Value> at_path(Context& context, Value v, const Value& path) {
  if (path.is_integral()) return item(context, v, path);
  std::string_view rest = SPARROW_TRY(string_argument(path, "attribute"));
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = !part.empty() && part[0] != '-' && parsed.ptr == part.data() + part.size();
    v = SPARROW_TRY(
        item(context, v, is_index && parsed.ec == std::errc() ? int_value(index) : text_value(part)));
    if (dot == std::string_view::npos) return v;
    rest.remove_prefix(dot + 1);
  }
}

// The value that sorting and comparing go by: the attribute if one is asked for, in lower case unless case
// matters.
Result<Value> sort_key(Context& context, const Value& v, const std::optional<Value>& path,
                       bool case_sensitive) {
  Value key = path && !path->is_none() ? SPARROW_TRY(at_path(context, v, *path)) : v;
  if (case_sensitive || !key.is_string()) return key;
  SPARROW_TRY(context.heap.spend(key.size / 8));
  return context.heap.string(to_lower(key.view()));
}

Result<std::vector<Entry>> keyed_items(Context& context, const Value& v, const std::optional<Value>& path,
                                       bool case_sensitive) {
  std::vector<Entry> keyed;
  for (const Value& value : SPARROW_TRY(iterate(context.heap, v)))
    keyed.push_back({SPARROW_TRY(sort_key(context, value, path, case_sensitive)), value});
  return keyed;
}

bool is_set(const std::optional<Value>& flag) {
  return flag && is_true(*flag);
}

Result<Value> values_of(Context& context, const std::vector<Entry>& keyed, ListStyle style) {
  std::vector<Value> values;
  for (const Entry& entry : keyed) values.push_back(entry.value);
  return context.heap.list(values, style);
}

Result<Value> sort(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("sort", {"reverse", "case_sensitive", "attribute"}));
  std::vector<Entry> keyed = SPARROW_TRY(keyed_items(context, v, std::nullopt, /*case_sensitive=*/true));
  const bool has_path = bound[2] && bound[2]->is_string();
  // Several attributes, comma-separated, sort by the first that differs: from the last to the first, stably.
  std::string_view paths = has_path ? bound[2]->view() : std::string_view();
  do {
    const size_t comma = paths.rfind(',');
    std::optional<Value> path = bound[2];
    if (has_path) path = text_value(comma == std::string_view::npos ? paths : paths.substr(comma + 1));
    for (Entry& entry : keyed)
      entry.key = SPARROW_TRY(sort_key(context, entry.value, path, is_set(bound[1])));
    SPARROW_TRY(sort_values(context, keyed, is_set(bound[0])));
    paths = comma == std::string_view::npos ? std::string_view() : paths.substr(0, comma);
  } while (!paths.empty());
  return values_of(context, keyed, ListStyle::kList);
}

template <int kSign>
Result<Value> extreme(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("min", {"case_sensitive", "attribute"}));
  const auto keyed = SPARROW_TRY(keyed_items(context, v, bound[1], is_set(bound[0])));
  if (keyed.empty()) return undefined_value("item of an empty sequence", Kind::kList);
  const Entry* best = &keyed[0];
  for (const Entry& entry : keyed)
    if (SPARROW_TRY(order(context.heap, entry.key, best->key, kSign < 0 ? "<" : ">")) * kSign > 0)
      best = &entry;
  return best->value;
}

Result<Value> unique(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("unique", {"case_sensitive", "attribute"}));
  std::vector<Entry> kept;
  for (const Entry& entry : SPARROW_TRY(keyed_items(context, v, bound[1], is_set(bound[0])))) {
    bool seen = false;
    for (const Entry& earlier : kept) seen = seen || SPARROW_TRY(equal(context.heap, earlier.key, entry.key));
    if (!seen) kept.push_back(entry);
  }
  return values_of(context, kept, ListStyle::kGenerator);
}

Result<Value> group_by(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("groupby", {"attribute", "default", "case_sensitive"}, 1));
  std::vector<Entry> keyed = SPARROW_TRY(keyed_items(context, v, bound[0], is_set(bound[2])));
  SPARROW_TRY(sort_values(context, keyed, false));
  std::vector<Value> groups;
  for (size_t i = 0; i < keyed.size();) {
    std::vector<Value> members;
    const size_t first = i;
    while (i < keyed.size() && SPARROW_TRY(equal(context.heap, keyed[first].key, keyed[i].key)))
      members.push_back(keyed[i++].value);
    if (i == first) ++i;  // a key unequal to itself: not a number
    const Value key = SPARROW_TRY(at_path(context, keyed[first].value, *bound[0]));
    const Value list = SPARROW_TRY(context.heap.list(members));
    groups.push_back(SPARROW_TRY(context.heap.list({key, list}, ListStyle::kTuple)));
  }
  return context.heap.list(groups);
}

Result<Value> dict_sort(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("dictsort", {"case_sensitive", "by", "reverse"}));
  if (!v.is(Kind::kDict)) return template_error(strf("dictsort needs a dict, not {}", type_name(v)));
  const std::string_view by = bound[1] ? SPARROW_TRY(string_argument(*bound[1], "by")) : "key";
  if (by != "key" && by != "value") return template_error("You can only sort by either \"key\" or \"value\"");
  std::vector<Entry> keyed;
  for (const Entry& entry : v.dict->view()) {
    const Value& chosen = by == "key" ? entry.key : entry.value;
    keyed.push_back({SPARROW_TRY(sort_key(context, chosen, std::nullopt, is_set(bound[0]))),
                     SPARROW_TRY(context.heap.list({entry.key, entry.value}, ListStyle::kTuple))});
  }
  SPARROW_TRY(sort_values(context, keyed, is_set(bound[2])));
  return values_of(context, keyed, ListStyle::kList);
}

Result<Value> attr(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("attr", {"name"}, 1));
  const std::string_view name = SPARROW_TRY(string_argument(*bound[0], "name"));
  // Only attributes, not the items of a dict.
  if (v.is(Kind::kDict) && !has_method(v, name)) return undefined_value(name, Kind::kDict);
  return attribute(context, v, name);
}

Result<Value> batch(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("batch", {"linecount", "fill_with"}, 1));
  const int64_t size = SPARROW_TRY(integer_argument(*bound[0], "linecount"));
  if (size < 1 || size > 100'000) return template_error("linecount must be from 1 to 100000");
  std::vector<Value> batches, current;
  const std::span<const Value> items = SPARROW_TRY(iterate(context.heap, v));
  for (size_t i = 0; i < items.size(); ++i) {
    current.push_back(items[i]);
    const bool full = static_cast<int64_t>(current.size()) == size;
    if (!full && i + 1 < items.size()) continue;
    if (!full && bound[1] && !bound[1]->is_none()) current.resize(static_cast<size_t>(size), *bound[1]);
    batches.push_back(SPARROW_TRY(context.heap.list(current)));
    current.clear();
  }
  return context.heap.list(batches, ListStyle::kGenerator);
}

Result<Value> count(Context&, const Value& v, const Args&) {
  return int_value(SPARROW_TRY(length(v)));
}

Result<Value> first(Context& context, const Value& v, const Args&) {
  const std::span<const Value> items = SPARROW_TRY(iterate(context.heap, v));
  return items.empty() ? undefined_value("item of an empty sequence", Kind::kList) : items.front();
}

Result<Value> last(Context& context, const Value& v, const Args&) {
  if (v.is(Kind::kList) && v.list->style == ListStyle::kGenerator)
    return template_error("'generator' object is not reversible");
  const std::span<const Value> items = SPARROW_TRY(iterate(context.heap, v));
  return items.empty() ? undefined_value("item of an empty sequence", Kind::kList) : items.back();
}

Result<Value> items_filter(Context& context, const Value& v, const Args&) {
  if (v.is_undefined()) return context.heap.list({}, ListStyle::kGenerator);
  if (!v.is(Kind::kDict)) return template_error("Can only get item pairs from a mapping.");
  const Value items = SPARROW_TRY(call_method(context, v, "items", {}));
  return context.heap.list(items.list->view(), ListStyle::kGenerator);
}

Result<Value> join(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("join", {"d", "attribute"}));
  const std::string_view separator = bound[0] ? SPARROW_TRY(str_view(context.heap, *bound[0])) : "";
  std::span<const Value> items = SPARROW_TRY(iterate(context.heap, v));
  std::vector<Value> attributes;
  if (bound[1] && !bound[1]->is_none()) {
    for (const Value& value : items) attributes.push_back(SPARROW_TRY(at_path(context, value, *bound[1])));
    items = attributes;
  }
  return joined_items(context, items, separator);
}

Result<Value> list_filter(Context& context, const Value& v, const Args&) {
  return context.heap.list(SPARROW_TRY(iterate(context.heap, v)));
}

Result<Value> map_attribute(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("map", {"attribute", "default"}, 1));
  std::vector<Value> out;
  for (const Value& value : SPARROW_TRY(iterate(context.heap, v))) {
    const Value found = SPARROW_TRY(at_path(context, value, *bound[0]));
    out.push_back(found.is_undefined() && bound[1] ? *bound[1] : found);
  }
  return context.heap.list(out, ListStyle::kGenerator);
}

Result<Value> map(Context& context, const Value& v, const Args& args) {
  if (!is_true(v)) return context.heap.list({}, ListStyle::kGenerator);  // None too: jinja2 asks no further
  if (args.positional.empty()) return map_attribute(context, v, args);
  const std::string_view name = SPARROW_TRY(string_argument(args.positional[0], "the name of a filter"));
  const Filter filter = find_filter(name);
  if (filter == nullptr) return template_error(strf("No filter named '{}'.", name));
  const Args rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  std::vector<Value> out;
  for (const Value& value : SPARROW_TRY(iterate(context.heap, v))) {
    SPARROW_TRY(context.heap.spend(1));
    out.push_back(SPARROW_TRY(filter(context, value, rest)));
  }
  return context.heap.list(out, ListStyle::kGenerator);
}

// select, reject, selectattr, rejectattr.
template <bool kKeep, bool kByAttribute>
Result<Value> select(Context& context, const Value& v, const Args& args) {
  if (!is_true(v)) return context.heap.list({}, ListStyle::kGenerator);  // None too: jinja2 asks no further
  constexpr size_t kSkip = kByAttribute ? 1 : 0;
  if (args.positional.size() < kSkip) return template_error("the name of the attribute is missing");
  Test test = nullptr;
  Args rest;
  if (args.positional.size() > kSkip) {
    const std::string_view name = SPARROW_TRY(string_argument(args.positional[kSkip], "the name of a test"));
    test = find_test(name);
    if (test == nullptr) return template_error(strf("No test named '{}'.", name));
    rest = Args{{args.positional.begin() + kSkip + 1, args.positional.end()}, args.named};
  }
  std::vector<Value> kept;
  for (const Value& value : SPARROW_TRY(iterate(context.heap, v))) {
    SPARROW_TRY(context.heap.spend(1));
    const Value tested = kByAttribute ? SPARROW_TRY(at_path(context, value, args.positional[0])) : value;
    const bool holds = test == nullptr ? is_true(tested) : SPARROW_TRY(test(context, tested, rest));
    if (holds == kKeep) kept.push_back(value);
  }
  return context.heap.list(kept, ListStyle::kGenerator);
}

Result<Value> reverse(Context& context, const Value& v, const Args&) {
  if (v.is_string()) return slice(context, v, none_value(), none_value(), int_value(-1));
  const std::span<const Value> items = SPARROW_TRY(iterate(context.heap, v));
  return context.heap.list(std::vector<Value>(items.rbegin(), items.rend()), ListStyle::kGenerator);
}

Result<Value> sum(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("sum", {"attribute", "start"}));
  Value total = bound[1].value_or(int_value(0));
  if (total.is_string()) return template_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& value : SPARROW_TRY(iterate(context.heap, v))) {
    const bool by_path = bound[0] && !bound[0]->is_none();
    total = SPARROW_TRY(
        binary(context, "+", total, by_path ? SPARROW_TRY(at_path(context, value, *bound[0])) : value));
  }
  return total;
}

constexpr std::pair<std::string_view, Filter> kListFilters[] = {
    {"attr", attr},
    {"batch", batch},
    {"count", count},
    {"dictsort", dict_sort},
    {"first", first},
    {"groupby", group_by},
    {"items", items_filter},
    {"join", join},
    {"last", last},
    {"length", count},
    {"list", list_filter},
    {"map", map},
    {"max", extreme<1>},
    {"min", extreme<-1>},
    {"reject", select<false, false>},
    {"rejectattr", select<false, true>},
    {"reverse", reverse},
    {"select", select<true, false>},
    {"selectattr", select<true, true>},
    {"sort", sort},
    {"sum", sum},
    {"unique", unique},
};

}  // namespace

Status sort_values(Context& context, std::vector<Entry>& keyed, bool reverse) {
  // Comparing may fail, and a comparator cannot say so: the first error is kept, and everything is equal from
  // then on.
  std::optional<Error> failed;
  const auto less = [&](const Entry& a, const Entry& b) {
    // jinja2 sorts by lists of keys, and lists ask first whether their items are equal.
    if (failed || (a.key.is_undefined() && b.key.is_undefined())) return false;
    const Result<int> sign = order(context.heap, a.key, b.key, "<");
    if (!sign.ok()) failed = sign.error();
    return sign.ok() && (reverse ? sign.value() > 0 : sign.value() < 0);
  };
  std::stable_sort(keyed.begin(), keyed.end(), less);
  if (failed) return *failed;
  return Ok{};
}

Filter find_list_filter(std::string_view name) {
  for (const auto& [known, filter] : kListFilters)
    if (known == name) return filter;
  return nullptr;
}

}  // namespace sparrow::jinja
