// SPDX-License-Identifier: Apache-2.0
// Filters on text and numbers, and the table of all filters. Those on lists are in list_filters.cc.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/strf.h"
#include "text/jinja/builtins/builtins.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/format.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

// A filter that makes one text out of another.
template <std::string (*kMap)(std::string_view)>
Result<Value> mapped(Context& context, const Value& v, const Args& args) {
  SPARROW_TRY(args.bind("filter", {}));
  const std::string_view text = SPARROW_TRY(str_view(context.heap, v));
  SPARROW_TRY(context.heap.spend(static_cast<int64_t>(text.size() / 8)));
  // Which of its bytes came from where is lost.
  return context.heap.string(kMap(text), context.heap.is_markup(text) ? kMarkup : kData);
}

Result<Value> absolute(Context&, const Value& v, const Args&) {
  if (v.is(Kind::kFloat)) return float_value(std::fabs(v.number));
  if (v.is_integral() && v.as_integer() >= 0) return int_value(v.as_integer());
  return negate(v);
}

Result<Value> center(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("center", {"width"}));
  const Value text = SPARROW_TRY(str_value(context.heap, v));
  return call_string_method(context, text, "center", {{bound[0].value_or(int_value(80))}, {}});
}

Result<Value> default_value(Context&, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("default", {"default_value", "boolean"}));
  const bool any_false = bound[1] && is_true(*bound[1]);
  if (v.is_undefined() || (any_false && !is_true(v))) return bound[0].value_or(text_value(""));
  return v;
}

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&#34;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string percent_encoded(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || c == '/';
    out += plain ? std::string(1, c) : strf("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

// jinja2's own idea of a title: the first letter after a blank or an opening bracket.
std::string title(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (; !text.empty(); text.remove_prefix(char_bytes(text))) {
    const std::string_view c = text.substr(0, char_bytes(text));
    const bool splits = is_space(first_char(c)) || c == "-" || c == "(" || c == "{" || c == "[" || c == "<";
    out += at_start ? to_upper(c) : to_lower(c);
    at_start = splits;
  }
  return out;
}

Result<Value> format_filter(Context& context, const Value& v, const Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    return template_error("format: either positional or keyword arguments, not both");
  Value values;
  if (args.named.empty()) {
    values = SPARROW_TRY(context.heap.list(args.positional, ListStyle::kTuple));
  } else {
    std::vector<Entry> entries;
    for (const auto& [name, value] : args.named) entries.push_back({text_value(name), value});
    values = SPARROW_TRY(context.heap.dict(entries));
  }
  return percent_format(context.heap, SPARROW_TRY(str_view(context.heap, v)), values);
}

Result<Value> parsed_float(std::string_view text) {
  text = strip_right(strip_left(text, nullptr), nullptr);
  const bool plus = text.starts_with('+');
  if (plus) text.remove_prefix(1);
  double d = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), d);
  if (text.empty() || parsed.ptr != text.data() + text.size() || (plus && text.starts_with('-')))
    return template_error("could not convert string to float");
  if (parsed.ec == std::errc::result_out_of_range) d = std::strtod(std::string(text).c_str(), nullptr);
  return float_value(d);
}

Result<Value> to_float(Context&, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("float", {"default"}));
  if (v.is_undefined()) return template_error(undefined_message(v));
  if (v.is_number()) return float_value(v.as_double());
  if (v.is_string()) {
    const Result<Value> parsed = parsed_float(v.view());
    if (parsed.ok()) return parsed;
  }
  return bound[0].value_or(float_value(0.0));
}

// int(text, base); nullopt where Python raises ValueError.
Result<std::optional<Value>> parsed_int(Context& context, std::string_view text, int base) {
  text = strip_right(strip_left(text, nullptr), nullptr);
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 0x20);
    if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') || (base == 2 && letter == 'b'))
      text.remove_prefix(2);
  }
  std::string digits = negative ? "-" : "";
  for (size_t i = 0; i < text.size(); ++i) {
    const bool separator = text[i] == '_' && i > 0 && i + 1 < text.size() && text[i - 1] != '_';
    if (!separator) digits += text[i];
  }
  if (text.empty() || text[0] == '-') return std::optional<Value>();
  int64_t value = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (parsed.ptr != digits.data() + digits.size()) return std::optional<Value>();
  if (parsed.ec == std::errc()) return std::optional<Value>(int_value(value));
  if (base != 10) return template_error("an integer does not fit 64 bits");
  const size_t sign = negative ? 1 : 0;
  digits.erase(sign, digits.find_first_not_of('0', sign) - sign);
  Value big = SPARROW_TRY(context.heap.string(digits));
  big.kind = Kind::kBigInt;
  return std::optional<Value>(big);
}

Result<std::optional<Value>> truncated(Context& context, double d) {
  if (!std::isfinite(d)) return std::optional<Value>();
  if (std::fabs(d) < 0x1p63) return std::optional<Value>(int_value(static_cast<int64_t>(d)));
  return parsed_int(context, strf("{:.0f}", d), 10);
}

Result<Value> to_int(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("int", {"default", "base"}));
  const int64_t base = bound[1] ? SPARROW_TRY(integer_argument(*bound[1], "the base")) : 10;
  if (base < 2 || base > 36) return template_error("int() base must be >= 2 and <= 36");
  if (v.is_undefined()) return template_error(undefined_message(v));
  if (v.is(Kind::kBigInt)) return v;
  if (v.is_integral()) return int_value(v.as_integer());
  std::optional<Value> result;
  if (v.is_string()) {
    result = SPARROW_TRY(parsed_int(context, v.view(), static_cast<int>(base)));
    if (!result) {
      const Result<Value> number = parsed_float(v.view());
      if (number.ok()) result = SPARROW_TRY(truncated(context, number.value().number));
    }
  } else if (v.is(Kind::kFloat)) {
    result = SPARROW_TRY(truncated(context, v.number));
  }
  return result ? *result : bound[0].value_or(int_value(0));
}

Result<Value> indent(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("indent", {"width", "first", "blank"}));
  const Value width = bound[0].value_or(int_value(4));
  const Value one = text_value(" ");
  const Value margin = width.is_string() ? width : SPARROW_TRY(binary(context, "*", one, width));
  const bool first = bound[1] && is_true(*bound[1]);
  const bool blank = bound[2] && is_true(*bound[2]);
  const Value text = SPARROW_TRY(context.heap.joined(SPARROW_TRY(str_view(context.heap, v)), "\n"));
  const Value lines = SPARROW_TRY(call_string_method(context, text, "splitlines", {}));
  SPARROW_TRY(context.heap.spend_text(text.size + size_t{margin.size} * lines.list->size));
  TextBuilder out(context.heap);
  for (uint32_t i = 0; i < lines.list->size; ++i) {
    const std::string_view line = lines.list->items[i].view();
    if (i > 0) out += '\n';
    if (i == 0 ? first : blank || !line.empty()) out += margin.view();
    out += line;
  }
  return context.heap.string(out);
}

Result<Value> replace(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("replace", {"old", "new", "count"}, 2));
  const bool limited = bound[2] && !bound[2]->is_none();
  const int64_t count = limited ? SPARROW_TRY(integer_argument(*bound[2], "count")) : -1;
  return replaced(context, SPARROW_TRY(str_view(context.heap, v)),
                  SPARROW_TRY(str_view(context.heap, *bound[0])),
                  SPARROW_TRY(str_view(context.heap, *bound[1])), count);
}

// Python's round: correctly rounded decimal, ties to even, which is what printf does too.
double rounded(double d, int digits) {
  if (digits > 300 || !std::isfinite(d)) return d;
  if (digits >= 0) return std::strtod(strf("{:.{}f}", d, digits).c_str(), nullptr);
  const double scale = std::pow(10.0, -digits);
  return std::nearbyint(d / scale) * scale;
}

Result<Value> round_filter(Context&, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("round", {"precision", "method"}));
  const int64_t digits = bound[0] ? SPARROW_TRY(integer_argument(*bound[0], "precision")) : 0;
  const std::string_view method = bound[1] ? SPARROW_TRY(string_argument(*bound[1], "method")) : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return template_error("method must be common, ceil or floor");
  if (digits < -300 || digits > 300) return template_error("precision is out of range");
  if (v.is_undefined()) return template_error(undefined_message(v));
  if (!v.is_number()) return template_error(strf("type {} doesn't define __round__ method", type_name(v)));
  if (method == "common") {
    if (v.is(Kind::kFloat)) return float_value(rounded(v.number, static_cast<int>(digits)));
    if (digits >= 0) return v.is(Kind::kBool) ? int_value(v.as_integer()) : v;
    return template_error("rounding an integer to tens is not supported");
  }
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const double scaled = v.as_double() * scale;
  return float_value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Result<Value> string_filter(Context& context, const Value& v, const Args&) {
  return str_value(context.heap, v);
}

Result<JsonStyle> json_style(Context& context, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style{.ensure_ascii = bound[0] && is_true(*bound[0]),
                  .sort_keys = bound[3] && is_true(*bound[3])};
  if (bound[1] && !bound[1]->is_none()) {
    const Value margin =
        bound[1]->is_string() ? *bound[1] : SPARROW_TRY(binary(context, "*", text_value(" "), *bound[1]));
    if (margin.size > 1000) return template_error("the indent of tojson has more than 1000 bytes");
    style.indent = std::string(margin.view());
    style.item_separator = ",";
  }
  if (bound[2] && !bound[2]->is_none()) {
    const std::span<const Value> two = SPARROW_TRY(iterate(context.heap, *bound[2]));
    if (two.size() != 2) return template_error("separators must be two strings");
    style.item_separator = SPARROW_TRY(string_argument(two[0], "a separator"));
    style.key_separator = SPARROW_TRY(string_argument(two[1], "a separator"));
  }
  return style;
}

Result<Value> to_json(Context& context, const Value& v, const Args& args) {
  const JsonStyle style = SPARROW_TRY(json_style(context, args));
  TextBuilder out(context.heap);
  SPARROW_TRY(append_json(context.heap, v, style, out));
  return context.heap.string(out);
}

Result<Value> trim(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("trim", {"chars"}));
  const Value text = SPARROW_TRY(str_value(context.heap, v));
  return call_string_method(context, text, "strip", {{bound[0].value_or(none_value())}, {}});
}

Result<Value> truncate(Context& context, const Value& v, const Args& args) {
  const auto bound = SPARROW_TRY(args.bind("truncate", {"length", "killwords", "end", "leeway"}));
  const int64_t limit = bound[0] ? SPARROW_TRY(integer_argument(*bound[0], "length")) : 255;
  const std::string_view end = bound[2] ? SPARROW_TRY(string_argument(*bound[2], "end")) : "...";
  const bool has_leeway = bound[3] && !bound[3]->is_none();
  const int64_t leeway = has_leeway ? SPARROW_TRY(integer_argument(*bound[3], "leeway")) : 5;
  const std::string_view text = SPARROW_TRY(str_view(context.heap, v));
  const auto end_size = static_cast<int64_t>(num_chars(end));
  if (limit < end_size || limit > INT32_MAX || leeway < 0 || leeway > INT32_MAX)
    return template_error(strf("expected length >= {} and leeway >= 0", end_size));
  if (static_cast<int64_t>(num_chars(text)) <= limit + leeway) return text_value(text);
  std::string_view kept = text.substr(0, char_offset(text, static_cast<size_t>(limit - end_size)));
  const size_t blank = kept.rfind(' ');
  if (!(bound[1] && is_true(*bound[1])) && blank != std::string_view::npos) kept = kept.substr(0, blank);
  return context.heap.joined(kept, end);
}

Result<Value> word_count(Context& context, const Value& v, const Args&) {
  int64_t words = 0;
  bool inside = false;
  for (std::string_view rest = SPARROW_TRY(str_view(context.heap, v)); !rest.empty();
       rest.remove_prefix(char_bytes(rest))) {
    const char32_t c = first_char(rest);
    const bool word = is_alpha(c) || is_numeric(c) || c == '_';
    words += word && !inside ? 1 : 0;
    inside = word;
  }
  return int_value(words);
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", absolute},
    {"capitalize", mapped<to_capitalized>},
    {"center", center},
    {"d", default_value},
    {"default", default_value},
    {"e", mapped<html_escaped>},
    {"escape", mapped<html_escaped>},
    {"float", to_float},
    {"forceescape", mapped<html_escaped>},
    {"format", format_filter},
    {"indent", indent},
    {"int", to_int},
    {"lower", mapped<to_lower>},
    {"replace", replace},
    {"round", round_filter},
    {"safe", string_filter},
    {"string", string_filter},
    {"title", mapped<title>},
    {"tojson", to_json},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", mapped<to_upper>},
    {"urlencode", mapped<percent_encoded>},
    {"wordcount", word_count},
};

}  // namespace

Filter find_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters)
    if (known == name) return filter;
  return find_list_filter(name);
}

}  // namespace sparrow::jinja
