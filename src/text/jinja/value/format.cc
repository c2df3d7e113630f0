// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value/format.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "base/strf.h"
#include "text/jinja/run/macro.h"
#include "text/jinja/value/compare.h"
#include "text/jinja/value/unicode.h"

namespace sparrow::jinja {

namespace {

Status check_size(const Heap& heap, const TextBuilder& out) {
  if (out.size() <= heap.limits().max_output) return Ok{};
  return template_error(strf("a text has more than {} bytes", heap.limits().max_output));
}

void append_hex_escape(TextBuilder& out, char32_t c) {
  const auto code = static_cast<unsigned>(c);
  out += c < 0x100     ? strf("\\x{:02x}", code)
         : c < 0x10000 ? strf("\\u{:04x}", code)
                       : strf("\\U{:08x}", code);
}

void append_string_repr(std::string_view text, TextBuilder& out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  size_t done = 0;  // what needs no escape is copied in one go
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const size_t start = at;
    const char32_t c = first_char(rest);
    at += char_bytes(rest);
    const bool escaped = c == '\\' || c == static_cast<char32_t>(quote);
    if (!escaped && is_printable(c)) continue;
    out += text.substr(done, start - done);
    done = at;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (escaped) {
      out += '\\';
      out += static_cast<char>(c);
    } else {
      append_hex_escape(out, c);
    }
  }
  out += text.substr(done);
  out += quote;
}

Status append_items(Heap& heap, std::span<const Value> items, TextBuilder& out) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    SPARROW_TRY(append_repr(heap, items[i], out));
  }
  return Ok{};
}

Status append_entries(Heap& heap, std::span<const Entry> entries, TextBuilder& out) {
  out += '{';
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i > 0) out += ", ";
    SPARROW_TRY(append_repr(heap, entries[i].key, out));
    out += ": ";
    SPARROW_TRY(append_repr(heap, entries[i].value, out));
  }
  out += '}';
  return Ok{};
}

Status append_list_repr(Heap& heap, const ListNode& list, TextBuilder& out) {
  switch (list.style) {
    case ListStyle::kRange: {
      const int64_t first = list.size > 0 ? list.items[0].integer : 0;
      const int64_t step = list.size > 1 ? list.items[1].integer - first : 1;
      out += strf("range({}, {}", first, first + step * static_cast<int64_t>(list.size));
      out += step == 1 ? ")" : strf(", {})", step);
      return Ok{};
    }
    case ListStyle::kGenerator:
      return template_error("a filter's result was printed; use |list or |join on it");
    case ListStyle::kTuple:
      out += '(';
      SPARROW_TRY(append_items(heap, list.view(), out));
      out += list.size == 1 ? ",)" : ")";
      return Ok{};
    case ListStyle::kList:
      out += '[';
      break;
    case ListStyle::kDictKeys:
      out += "dict_keys([";
      break;
    case ListStyle::kDictValues:
      out += "dict_values([";
      break;
    case ListStyle::kDictItems:
      out += "dict_items([";
      break;
  }
  SPARROW_TRY(append_items(heap, list.view(), out));
  out += list.style == ListStyle::kList ? "]" : "])";
  return Ok{};
}

}  // namespace

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), d, std::chars_format::scientific);
  const std::string_view text(buffer.data(), static_cast<size_t>(end.ptr - buffer.data()));
  const size_t e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  int exponent = 0;
  const size_t exponent_at = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  const std::string sign = text[0] == '-' ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : "";
    return strf("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

Status append_str(Heap& heap, const Value& v, TextBuilder& out) {
  if (v.is_undefined()) return Ok{};
  if (!v.is_string()) return append_repr(heap, v, out);
  SPARROW_TRY(heap.spend_text(v.size));
  out += v.view();
  return check_size(heap, out);
}

Status append_repr(Heap& heap, const Value& v, TextBuilder& out) {
  SPARROW_TRY(heap.spend(1));
  SPARROW_TRY(check_size(heap, out));
  switch (v.kind) {
    case Kind::kUndefined:
      out += "Undefined";
      return Ok{};
    case Kind::kNone:
      out += "None";
      return Ok{};
    case Kind::kBool:
      out += v.boolean ? "True" : "False";
      return Ok{};
    case Kind::kInt:
      out += strf("{}", v.integer);
      return Ok{};
    case Kind::kFloat:
      out += float_repr(v.number);
      return Ok{};
    case Kind::kString:
      SPARROW_TRY(heap.spend(v.size / 8));
      append_string_repr(v.view(), out);
      return Ok{};
    case Kind::kBigInt:
      out += v.view();
      return Ok{};
    case Kind::kList:
      return append_list_repr(heap, *v.list, out);
    case Kind::kDict:
      return append_entries(heap, v.dict->view(), out);
    case Kind::kMacro:
      out += strf("<Macro '{}'>", v.macro->name());
      return Ok{};
    case Kind::kNamespace:  // may contain itself
    case Kind::kLoop:
    case Kind::kFunction:
    case Kind::kMethod:
      break;
  }
  return template_error(strf("a {} cannot be printed", type_name(v)));
}

Result<Value> str_value(Heap& heap, const Value& v) {
  if (v.is_string()) return v;
  if (v.is_undefined()) return text_value("");
  TextBuilder text(heap);
  SPARROW_TRY(append_str(heap, v, text));
  return heap.string(text);
}

Result<std::string_view> str_view(Heap& heap, const Value& v) {
  return SPARROW_TRY(str_value(heap, v)).view();
}

namespace {

void append_unicode_escape(TextBuilder& out, char32_t c) {
  if (c >= 0x10000) {
    append_unicode_escape(out, 0xd800 + ((c - 0x10000) >> 10));
    append_unicode_escape(out, 0xdc00 + ((c - 0x10000) & 0x3ff));
  } else {
    out += strf("\\u{:04x}", static_cast<unsigned>(c));
  }
}

void append_json_string(std::string_view text, bool ensure_ascii, TextBuilder& out) {
  static constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
  static constexpr std::string_view kLetters = "\"\\nrtfb";
  out += '"';
  size_t done = 0;  // what needs no escape is copied in one go
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const size_t k = kEscaped.find(text[at]);
    const bool by_number = byte < 0x20 || (ensure_ascii && byte >= 0x7f);
    if (k == std::string_view::npos && !by_number) {
      ++at;
      continue;
    }
    out += text.substr(done, at - done);
    if (k != std::string_view::npos) {
      out += '\\';
      out += kLetters[k];
      ++at;
    } else {
      append_unicode_escape(out, first_char(text.substr(at)));
      at += char_bytes(text.substr(at));
    }
    done = at;
  }
  out += text.substr(done);
  out += '"';
}

class JsonPrinter {
 public:
  JsonPrinter(Heap& heap, const JsonStyle& style, TextBuilder& out) : heap_(heap), style_(style), out_(out) {}

  Status value(const Value& v, int level) {
    SPARROW_TRY(heap_.spend(1));
    SPARROW_TRY(check_size(heap_, out_));
    switch (v.kind) {
      case Kind::kString:
        SPARROW_TRY(heap_.spend(v.size / 16));
        append_json_string(v.view(), style_.ensure_ascii, out_);
        return Ok{};
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kBigInt:
      case Kind::kFloat:
        out_ += scalar(v);
        return Ok{};
      case Kind::kDict:
        return object(*v.dict, level);
      case Kind::kList:
        if (v.list->style == ListStyle::kList || v.list->style == ListStyle::kTuple)
          return array(v.list->view(), level);
        break;
      default:
        break;
    }
    return template_error(strf("Object of type {} is not JSON serializable", type_name(v)));
  }

 private:
  static std::string scalar(const Value& v) {
    if (v.is_none()) return "null";
    if (v.is(Kind::kBool)) return v.boolean ? "true" : "false";
    if (v.is(Kind::kBigInt)) return std::string(v.view());
    if (v.is(Kind::kInt)) return strf("{}", v.integer);
    if (std::isnan(v.number)) return "NaN";
    if (std::isinf(v.number)) return v.number < 0 ? "-Infinity" : "Infinity";
    return float_repr(v.number);
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  Status array(std::span<const Value> items, int level) {
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      SPARROW_TRY(value(items[i], level + 1));
    }
    if (!items.empty()) new_line(level);
    out_ += ']';
    return Ok{};
  }

  Status object(const DictNode& dict, int level) {
    std::vector<Entry> entries(dict.view().begin(), dict.view().end());
    if (style_.sort_keys) SPARROW_TRY(sort(entries));
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      const Value& key = entries[i].key;
      if (!key.is_string() && !key.is_none() && !key.is_number())
        return template_error(strf("keys must be str, int, float, bool or None, not {}", type_name(key)));
      if (key.is_string()) {
        append_json_string(key.view(), style_.ensure_ascii, out_);
      } else {
        append_json_string(scalar(key), style_.ensure_ascii, out_);
      }
      out_ += style_.key_separator;
      SPARROW_TRY(value(entries[i].value, level + 1));
    }
    if (!entries.empty()) new_line(level);
    out_ += '}';
    return Ok{};
  }

  Status sort(std::vector<Entry>& entries) {
    for (const Entry& entry : entries) SPARROW_TRY(order(heap_, entries[0].key, entry.key, "<"));
    SPARROW_TRY(heap_.spend(static_cast<int64_t>(entries.size())));
    std::stable_sort(entries.begin(), entries.end(), [this](const Entry& a, const Entry& b) {
      const Result<int> less = order(heap_, a.key, b.key, "<");
      return less.ok() && less.value() < 0;
    });
    return Ok{};
  }

  Heap& heap_;
  const JsonStyle& style_;
  TextBuilder& out_;
};

}  // namespace

Status append_json(Heap& heap, const Value& v, const JsonStyle& style, TextBuilder& out) {
  return JsonPrinter(heap, style, out).value(v, 0);
}

}  // namespace sparrow::jinja
