// SPDX-License-Identifier: Apache-2.0
// Python's str methods. Positions count characters, not bytes.
#include <algorithm>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/builtins/format_method.h"
#include "text/jinja/builtins/split.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

using Method = Result<Value> (*)(Context& context, const Value& self, const Args& args);

constexpr size_t kNowhere = std::string_view::npos;

template <std::string (*kMap)(std::string_view)>
Result<Value> mapped(Context& context, const Value& self, const Args& args) {
  SPARROW_TRY(args.bind("method", {}));
  SPARROW_TRY(context.heap.spend(self.size / 8));
  // Which of its bytes came from where is lost.
  return context.heap.string(kMap(self.view()), context.heap.is_markup(self.view()) ? kMarkup : kData);
}

template <bool (*kClass)(char32_t)>
Result<Value> all_are(Context& context, const Value& self, const Args&) {
  SPARROW_TRY(context.heap.spend(self.size / 8));
  for (std::string_view rest = self.view(); !rest.empty(); rest.remove_prefix(char_bytes(rest)))
    if (!kClass(first_char(rest))) return bool_value(false);
  return bool_value(self.size > 0);
}

bool is_alnum(char32_t c) {
  return is_alpha(c) || is_decimal(c) || is_digit(c) || is_numeric(c);
}

Result<Value> is_ascii(Context&, const Value& self, const Args&) {
  const std::string_view text = self.view();
  return bool_value(
      std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; }));
}

Result<Value> is_lower_case(Context& context, const Value& self, const Args& args) {
  return bool_value(SPARROW_TRY(find_test("lower")(context, self, args)));
}

Result<Value> is_upper_case(Context& context, const Value& self, const Args& args) {
  return bool_value(SPARROW_TRY(find_test("upper")(context, self, args)));
}

Result<Value> is_titled(Context&, const Value& self, const Args&) {
  bool any = false, after_cased = false;
  for (std::string_view rest = self.view(); !rest.empty(); rest.remove_prefix(char_bytes(rest))) {
    const char32_t c = first_char(rest);
    const bool starts = is_upper(c) || is_title(c);
    if ((starts && after_cased) || (is_lower(c) && !after_cased)) return bool_value(false);
    after_cased = is_cased(c);
    any = any || after_cased;
  }
  return bool_value(any);
}

enum class Side { kLeft, kRight, kBoth };

template <Side kSide>
Result<Value> strip(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("strip", {"chars"}));
  std::string_view chars;
  const bool given = bound[0] && !bound[0]->is_none();
  if (given) chars = SPARROW_TRY(string_argument(*bound[0], "strip's argument"));
  SPARROW_TRY(context.heap.spend(static_cast<int64_t>(self.size / 256 * (1 + chars.size()))));
  std::string_view text = self.view();
  if (kSide != Side::kRight) text = strip_left(text, given ? &chars : nullptr);
  if (kSide != Side::kLeft) text = strip_right(text, given ? &chars : nullptr);
  return text_value(text);
}

// Pads to a width in characters; Python's center puts the odd blank on the left of odd widths only.
template <Side kSide>
Result<Value> padded(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("ljust", {"width", "fillchar"}, 1));
  const int64_t width = SPARROW_TRY(integer_argument(*bound[0], "width"));
  const std::string_view fill = bound[1] ? SPARROW_TRY(string_argument(*bound[1], "fillchar")) : " ";
  if (num_chars(fill) != 1) return template_error("The fill character must be exactly one character long");
  const auto size = static_cast<int64_t>(num_chars(self.view()));
  if (width <= size) return self;
  const auto missing = static_cast<size_t>(width - size);
  if (missing > context.heap.limits().max_output / fill.size())
    return template_error(strf("a width of {} is too large", width));
  SPARROW_TRY(context.heap.spend_text(self.size + missing * fill.size()));
  size_t left = kSide == Side::kLeft ? 0 : missing;
  if (kSide == Side::kBoth) left = missing / 2 + (missing & static_cast<size_t>(width) & 1);
  TextBuilder out(context.heap);
  for (size_t i = 0; i < left; ++i) out += fill;
  out += self.view();
  for (size_t i = left; i < missing; ++i) out += fill;
  return context.heap.string(out);
}

Result<Value> zfill(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("zfill", {"width"}, 1));
  const std::string_view text = self.view();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const int64_t width = SPARROW_TRY(integer_argument(*bound[0], "width"));
  const Value digits = SPARROW_TRY(padded<Side::kRight>(
      context, text_value(text.substr(sign)),
      {{int_value(width <= INT64_MIN + 1 ? 0 : width - static_cast<int64_t>(sign)), text_value("0")}, {}}));
  return context.heap.joined(text.substr(0, sign), digits.view());
}

// The part of the text that [start:end] names, as find, count and the like take it.
struct Window {
  std::string_view text;
  int64_t start;  // in characters
};

Result<std::optional<Window>> window(Context& context, const Value& self, const std::optional<Value>& start,
                                     const std::optional<Value>& end) {
  const Value from = start.value_or(none_value()), to = end.value_or(none_value());
  if (from.is_none() && to.is_none()) return std::optional<Window>(Window{self.view(), 0});
  for (const Value* bound : {&from, &to})
    if (!bound->is_none()) SPARROW_TRY(integer_argument(*bound, "a position in a text"));
  const Value part = SPARROW_TRY(slice(context, self, from, to, none_value()));
  const Value tail = SPARROW_TRY(slice(context, self, from, none_value(), none_value()));
  const auto size = static_cast<int64_t>(num_chars(self.view()));
  const auto at = size - static_cast<int64_t>(num_chars(tail.view()));
  // Past the end not even the empty text is found.
  if (from.is_integral() && from.as_integer() > size) return std::optional<Window>();
  return std::optional<Window>(Window{part.view(), at});
}

template <bool kFromRight, bool kMustExist>
Result<Value> find(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("find", {"sub", "start", "end"}, 1));
  const std::string_view sub = SPARROW_TRY(string_argument(*bound[0], "find's argument"));
  SPARROW_TRY(context.heap.spend(self.size / 16));
  const auto where = SPARROW_TRY(window(context, self, bound[1], bound[2]));
  const size_t at = !where ? kNowhere : kFromRight ? where->text.rfind(sub) : where->text.find(sub);
  if (at != kNowhere)
    return int_value(where->start + static_cast<int64_t>(num_chars(where->text.substr(0, at))));
  if (kMustExist) return template_error("substring not found");
  return int_value(-1);
}

Result<Value> count(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("count", {"sub", "start", "end"}, 1));
  const std::string_view sub = SPARROW_TRY(string_argument(*bound[0], "count's argument"));
  SPARROW_TRY(context.heap.spend(self.size / 16));
  const auto where = SPARROW_TRY(window(context, self, bound[1], bound[2]));
  if (!where) return int_value(0);
  if (sub.empty()) return int_value(static_cast<int64_t>(num_chars(where->text)) + 1);
  int64_t n = 0;
  for (size_t at = where->text.find(sub); at != kNowhere; at = where->text.find(sub, at + sub.size())) ++n;
  return int_value(n);
}

template <bool kAtStart>
Result<Value> has_affix(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("startswith", {"prefix", "start", "end"}, 1));
  const auto where = SPARROW_TRY(window(context, self, bound[1], bound[2]));
  const bool many = bound[0]->is(Kind::kList) && bound[0]->list->style == ListStyle::kTuple;
  const std::span<const Value> affixes =
      many ? bound[0]->list->view() : std::span<const Value>(&*bound[0], 1);
  for (const Value& affix : affixes) {
    const std::string_view text = SPARROW_TRY(string_argument(affix, "startswith's and endswith's argument"));
    if (where && (kAtStart ? where->text.starts_with(text) : where->text.ends_with(text)))
      return bool_value(true);
  }
  return bool_value(false);
}

template <bool kPrefix>
Result<Value> without_affix(Context&, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("removeprefix", {"prefix"}, 1));
  const std::string_view affix = SPARROW_TRY(string_argument(*bound[0], "removeprefix's argument"));
  const std::string_view text = self.view();
  if (kPrefix ? !text.starts_with(affix) : !text.ends_with(affix)) return self;
  return text_value(kPrefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
}

template <bool kFromRight>
Result<Value> partition(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("partition", {"sep"}, 1));
  const std::string_view sep = SPARROW_TRY(string_argument(*bound[0], "partition's argument"));
  if (sep.empty()) return template_error("empty separator");
  SPARROW_TRY(context.heap.spend(self.size / 16));
  const std::string_view text = self.view();
  const size_t at = kFromRight ? text.rfind(sep) : text.find(sep);
  const Value none = text_value("");
  if (at == kNowhere)
    return kFromRight ? context.heap.list({none, none, self}, ListStyle::kTuple)
                      : context.heap.list({self, none, none}, ListStyle::kTuple);
  return context.heap.list({text_value(text.substr(0, at)), text_value(text.substr(at, sep.size())),
                            text_value(text.substr(at + sep.size()))},
                           ListStyle::kTuple);
}

template <bool kFromRight>
Result<Value> split(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("split", {"sep", "maxsplit"}));
  const int64_t limit = bound[1] ? SPARROW_TRY(integer_argument(*bound[1], "maxsplit")) : -1;
  SPARROW_TRY(context.heap.spend(self.size / 4));
  if (!bound[0] || bound[0]->is_none())
    return context.heap.list(kFromRight ? rsplit_blanks(self.view(), limit)
                                        : split_blanks(self.view(), limit));
  const std::string_view sep = SPARROW_TRY(string_argument(*bound[0], "split's separator"));
  if (sep.empty()) return template_error("empty separator");
  return context.heap.list(kFromRight ? rsplit_at(self.view(), sep, limit)
                                      : split_at(self.view(), sep, limit));
}

Result<Value> splitlines(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("splitlines", {"keepends"}));
  const bool keep = bound[0] && is_true(*bound[0]);
  SPARROW_TRY(context.heap.spend(self.size / 4));
  std::vector<Value> lines;
  const std::string_view text = self.view();
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = char_bytes(text.substr(at));
    const bool breaks = is_line_break(first_char(text.substr(at)));
    const size_t end = at;
    at += bytes;
    if (!breaks) continue;
    if (text[end] == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text_value(text.substr(start, (keep ? at : end) - start)));
    start = at;
  }
  if (start < text.size()) lines.push_back(text_value(text.substr(start)));
  return context.heap.list(lines);
}

Result<Value> replace(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("replace", {"old", "new", "count"}, 2));
  return replaced(context, self.view(), SPARROW_TRY(string_argument(*bound[0], "replace's argument")),
                  SPARROW_TRY(string_argument(*bound[1], "replace's argument")),
                  bound[2] ? SPARROW_TRY(integer_argument(*bound[2], "count")) : -1);
}

Result<Value> join(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("join", {"iterable"}, 1));
  const std::span<const Value> items = SPARROW_TRY(iterate(context.heap, *bound[0]));
  for (size_t i = 0; i < items.size(); ++i)
    if (!items[i].is_string())
      return template_error(
          strf("sequence item {}: expected str instance, {} found", i, type_name(items[i])));
  return joined_items(context, items, self.view());
}

Result<Value> expand_tabs(Context& context, const Value& self, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("expandtabs", {"tabsize"}));
  const int64_t size = bound[0] ? SPARROW_TRY(integer_argument(*bound[0], "tabsize")) : 8;
  if (size > 1000) return template_error("a tabsize above 1000 is not supported");
  SPARROW_TRY(context.heap.spend_text(self.size * static_cast<size_t>(std::max<int64_t>(size, 1))));
  TextBuilder out(context.heap);
  int64_t column = 0;
  for (std::string_view rest = self.view(); !rest.empty(); rest.remove_prefix(char_bytes(rest))) {
    const std::string_view c = rest.substr(0, char_bytes(rest));
    if (c == "\t") {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      for (int64_t i = 0; i < blanks; ++i) out += ' ';
      column += blanks;
    } else {
      out += c;
      column = c == "\n" || c == "\r" ? 0 : column + 1;
    }
  }
  return context.heap.string(out);
}

Result<Value> format(Context& context, const Value& self, const Args& args) {
  return brace_format(context, self.view(), args);
}

constexpr std::pair<std::string_view, Method> kMethods[] = {
    {"capitalize", mapped<to_capitalized>},
    {"casefold", mapped<to_lower>},
    {"center", padded<Side::kBoth>},
    {"count", count},
    {"endswith", has_affix<false>},
    {"expandtabs", expand_tabs},
    {"find", find<false, false>},
    {"format", format},
    {"index", find<false, true>},
    {"isalnum", all_are<is_alnum>},
    {"isalpha", all_are<is_alpha>},
    {"isascii", is_ascii},
    {"isdecimal", all_are<is_decimal>},
    {"isdigit", all_are<is_digit>},
    {"islower", is_lower_case},
    {"isnumeric", all_are<is_numeric>},
    {"isspace", all_are<is_space>},
    {"istitle", is_titled},
    {"isupper", is_upper_case},
    {"join", join},
    {"ljust", padded<Side::kLeft>},
    {"lower", mapped<to_lower>},
    {"lstrip", strip<Side::kLeft>},
    {"partition", partition<false>},
    {"removeprefix", without_affix<true>},
    {"removesuffix", without_affix<false>},
    {"replace", replace},
    {"rfind", find<true, false>},
    {"rindex", find<true, true>},
    {"rjust", padded<Side::kRight>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<Side::kRight>},
    {"split", split<false>},
    {"splitlines", splitlines},
    {"startswith", has_affix<true>},
    {"strip", strip<Side::kBoth>},
    {"swapcase", mapped<to_swapped>},
    {"title", mapped<to_title>},
    {"upper", mapped<to_upper>},
    {"zfill", zfill},
};

}  // namespace

Result<Value> call_string_method(Context& context, const Value& object, std::string_view name,
                                 const Args& args) {
  for (const auto& [known, method] : kMethods)
    if (known == name) return method(context, object, args);
  return template_error(strf("'str' object has no method '{}'", name));
}

Result<Value> replaced(Context& context, std::string_view text, std::string_view from, std::string_view to,
                       int64_t count) {
  SPARROW_TRY(context.heap.spend(static_cast<int64_t>(text.size() / 16)));
  TextBuilder out(context.heap);
  const auto check = [&] {
    return context.heap.spend_text(out.size() > context.heap.limits().max_output ? out.size() : to.size());
  };
  size_t at = 0;
  while (count != 0) {
    const size_t found = text.find(from, at);
    if (found == kNowhere) break;
    out += text.substr(at, found - at);
    out += to;
    SPARROW_TRY(check());
    --count;
    at = found + from.size();
    if (!from.empty()) continue;
    // The empty text is found before every character and at the end.
    if (at == text.size()) break;
    const size_t bytes = char_bytes(text.substr(at));
    out += text.substr(at, bytes);
    at += bytes;
  }
  out += text.substr(at);
  return context.heap.string(out);
}

Result<Value> joined_items(Context& context, std::span<const Value> items, std::string_view separator) {
  TextBuilder out(context.heap);
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) {
      SPARROW_TRY(context.heap.spend_text(out.size() + separator.size() > context.heap.limits().max_output
                                              ? out.size() + separator.size()
                                              : separator.size()));
      out += separator;
    }
    SPARROW_TRY(append_str(context.heap, items[i], out));
  }
  return context.heap.string(out);
}

}  // namespace sparrow::jinja
