// SPDX-License-Identifier: Apache-2.0
// utf8proc holds Unicode's tables; what it leaves out of Python's rules is added here.
#include "text/jinja/value/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "base/utf8.h"
#include "text/unicode.h"

namespace sparrow::jinja {

namespace {

struct LongUpper {
  char32_t from;
  char32_t to[3];
};

// Characters whose upper case is more than one character (Unicode's SpecialCasing).
constexpr LongUpper kLongUpper[] = {
    {0xdf, {0x53, 0x53, 0}},         {0x149, {0x2bc, 0x4e, 0}},       {0x1f0, {0x4a, 0x30c, 0}},
    {0x390, {0x399, 0x308, 0x301}},  {0x3b0, {0x3a5, 0x308, 0x301}},  {0x587, {0x535, 0x552, 0}},
    {0x1e96, {0x48, 0x331, 0}},      {0x1e97, {0x54, 0x308, 0}},      {0x1e98, {0x57, 0x30a, 0}},
    {0x1e99, {0x59, 0x30a, 0}},      {0x1e9a, {0x41, 0x2be, 0}},      {0x1f50, {0x3a5, 0x313, 0}},
    {0x1f52, {0x3a5, 0x313, 0x300}}, {0x1f54, {0x3a5, 0x313, 0x301}}, {0x1f56, {0x3a5, 0x313, 0x342}},
    {0x1f80, {0x1f08, 0x399, 0}},    {0x1f81, {0x1f09, 0x399, 0}},    {0x1f82, {0x1f0a, 0x399, 0}},
    {0x1f83, {0x1f0b, 0x399, 0}},    {0x1f84, {0x1f0c, 0x399, 0}},    {0x1f85, {0x1f0d, 0x399, 0}},
    {0x1f86, {0x1f0e, 0x399, 0}},    {0x1f87, {0x1f0f, 0x399, 0}},    {0x1f88, {0x1f08, 0x399, 0}},
    {0x1f89, {0x1f09, 0x399, 0}},    {0x1f8a, {0x1f0a, 0x399, 0}},    {0x1f8b, {0x1f0b, 0x399, 0}},
    {0x1f8c, {0x1f0c, 0x399, 0}},    {0x1f8d, {0x1f0d, 0x399, 0}},    {0x1f8e, {0x1f0e, 0x399, 0}},
    {0x1f8f, {0x1f0f, 0x399, 0}},    {0x1f90, {0x1f28, 0x399, 0}},    {0x1f91, {0x1f29, 0x399, 0}},
    {0x1f92, {0x1f2a, 0x399, 0}},    {0x1f93, {0x1f2b, 0x399, 0}},    {0x1f94, {0x1f2c, 0x399, 0}},
    {0x1f95, {0x1f2d, 0x399, 0}},    {0x1f96, {0x1f2e, 0x399, 0}},    {0x1f97, {0x1f2f, 0x399, 0}},
    {0x1f98, {0x1f28, 0x399, 0}},    {0x1f99, {0x1f29, 0x399, 0}},    {0x1f9a, {0x1f2a, 0x399, 0}},
    {0x1f9b, {0x1f2b, 0x399, 0}},    {0x1f9c, {0x1f2c, 0x399, 0}},    {0x1f9d, {0x1f2d, 0x399, 0}},
    {0x1f9e, {0x1f2e, 0x399, 0}},    {0x1f9f, {0x1f2f, 0x399, 0}},    {0x1fa0, {0x1f68, 0x399, 0}},
    {0x1fa1, {0x1f69, 0x399, 0}},    {0x1fa2, {0x1f6a, 0x399, 0}},    {0x1fa3, {0x1f6b, 0x399, 0}},
    {0x1fa4, {0x1f6c, 0x399, 0}},    {0x1fa5, {0x1f6d, 0x399, 0}},    {0x1fa6, {0x1f6e, 0x399, 0}},
    {0x1fa7, {0x1f6f, 0x399, 0}},    {0x1fa8, {0x1f68, 0x399, 0}},    {0x1fa9, {0x1f69, 0x399, 0}},
    {0x1faa, {0x1f6a, 0x399, 0}},    {0x1fab, {0x1f6b, 0x399, 0}},    {0x1fac, {0x1f6c, 0x399, 0}},
    {0x1fad, {0x1f6d, 0x399, 0}},    {0x1fae, {0x1f6e, 0x399, 0}},    {0x1faf, {0x1f6f, 0x399, 0}},
    {0x1fb2, {0x1fba, 0x399, 0}},    {0x1fb3, {0x391, 0x399, 0}},     {0x1fb4, {0x386, 0x399, 0}},
    {0x1fb6, {0x391, 0x342, 0}},     {0x1fb7, {0x391, 0x342, 0x399}}, {0x1fbc, {0x391, 0x399, 0}},
    {0x1fc2, {0x1fca, 0x399, 0}},    {0x1fc3, {0x397, 0x399, 0}},     {0x1fc4, {0x389, 0x399, 0}},
    {0x1fc6, {0x397, 0x342, 0}},     {0x1fc7, {0x397, 0x342, 0x399}}, {0x1fcc, {0x397, 0x399, 0}},
    {0x1fd2, {0x399, 0x308, 0x300}}, {0x1fd3, {0x399, 0x308, 0x301}}, {0x1fd6, {0x399, 0x342, 0}},
    {0x1fd7, {0x399, 0x308, 0x342}}, {0x1fe2, {0x3a5, 0x308, 0x300}}, {0x1fe3, {0x3a5, 0x308, 0x301}},
    {0x1fe4, {0x3a1, 0x313, 0}},     {0x1fe6, {0x3a5, 0x342, 0}},     {0x1fe7, {0x3a5, 0x308, 0x342}},
    {0x1ff2, {0x1ffa, 0x399, 0}},    {0x1ff3, {0x3a9, 0x399, 0}},     {0x1ff4, {0x38f, 0x399, 0}},
    {0x1ff6, {0x3a9, 0x342, 0}},     {0x1ff7, {0x3a9, 0x342, 0x399}}, {0x1ffc, {0x3a9, 0x399, 0}},
    {0xfb00, {0x46, 0x46, 0}},       {0xfb01, {0x46, 0x49, 0}},       {0xfb02, {0x46, 0x4c, 0}},
    {0xfb03, {0x46, 0x46, 0x49}},    {0xfb04, {0x46, 0x46, 0x4c}},    {0xfb05, {0x53, 0x54, 0}},
    {0xfb06, {0x53, 0x54, 0}},       {0xfb13, {0x544, 0x546, 0}},     {0xfb14, {0x544, 0x535, 0}},
    {0xfb15, {0x544, 0x53b, 0}},     {0xfb16, {0x54e, 0x546, 0}},     {0xfb17, {0x544, 0x53d, 0}}};

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

char32_t simple_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

const LongUpper* long_upper(char32_t c) {
  const auto* found = std::lower_bound(std::begin(kLongUpper), std::end(kLongUpper), c,
                                       [](const LongUpper& row, char32_t x) { return row.from < x; });
  return found != std::end(kLongUpper) && found->from == c ? found : nullptr;
}

void append_upper(std::string& out, char32_t c) {
  if (const LongUpper* row = long_upper(c)) {
    for (const char32_t x : row->to)
      if (x != 0) append_utf8(out, x);
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
  }
}

void append_title(std::string& out, char32_t c) {
  if (const LongUpper* row = long_upper(c); row != nullptr && (c == 0xdf || c == 0x587 || c >= 0xfb00)) {
    append_utf8(out, row->to[0]);
    for (const char32_t x : {row->to[1], row->to[2]})
      if (x != 0) append_utf8(out, simple_lower(x));
  } else {
    append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
  }
}

bool has_cased(std::string_view text) {
  for (; !text.empty(); text.remove_prefix(char_bytes(text))) {
    const char32_t c = first_char(text);
    if (is_cased(c)) return true;
    const auto cat = category(c);
    const bool ignorable = cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_ME ||
                           cat == UTF8PROC_CATEGORY_CF || cat == UTF8PROC_CATEGORY_LM ||
                           cat == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0x2019;
    if (!ignorable) return false;
  }
  return false;
}

constexpr char32_t kSigma = 0x3a3, kFinalSigma = 0x3c2;

// `before_cased`: whether the sigma at the start of `rest` follows a cased letter.
void append_lower(std::string& out, std::string_view rest, bool before_cased) {
  const char32_t c = first_char(rest);
  if (c == kSigma && before_cased && !has_cased(rest.substr(char_bytes(rest)))) {
    append_utf8(out, kFinalSigma);
  } else if (c == 0x130) {
    out += "i\xcc\x87";  // the one character whose lower case is two
  } else {
    append_utf8(out, simple_lower(c));
  }
}

// Calls visit(out, rest, after_cased) for every character, `rest` starting with it.
template <typename Visit>
std::string map_chars(std::string_view text, Visit visit) {
  std::string out;
  out.reserve(text.size());
  bool after_cased = false;
  for (; !text.empty(); text.remove_prefix(char_bytes(text))) {
    visit(out, text, after_cased);
    after_cased = is_cased(first_char(text));
  }
  return out;
}

}  // namespace

size_t char_bytes(std::string_view text) {
  return decode_utf8(text).length;
}

char32_t first_char(std::string_view text) {
  return decode_utf8(text).code_point;
}

size_t num_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }));
}

size_t char_offset(std::string_view text, size_t index) {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += char_bytes(text.substr(at));
    --index;
  }
  return at;
}

bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

bool is_line_break(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

bool is_cased(char32_t c) {
  return is_upper(c) || is_lower(c) || is_title(c);
}

bool is_upper(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LU || (c >= 0x2160 && c <= 0x216f) || (c >= 0x24b6 && c <= 0x24cf);
}

bool is_lower(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba || (c >= 0x2b0 && c <= 0x2b8) ||
         (c >= 0x2170 && c <= 0x217f) || (c >= 0x24d0 && c <= 0x24e9);
}

bool is_title(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_LT;
}

bool is_alpha(char32_t c) {
  const auto cat = category(c);
  return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}

bool is_decimal(char32_t c) {
  return category(c) == UTF8PROC_CATEGORY_ND;
}

bool is_digit(char32_t c) {
  return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089) || (c >= 0x2460 && c <= 0x2468) ||
         (c >= 0x2474 && c <= 0x247c) || (c >= 0x2488 && c <= 0x2490);
}

bool is_numeric(char32_t c) {
  const auto cat = category(c);
  return cat == UTF8PROC_CATEGORY_ND || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO;
}

std::string to_upper(std::string_view text) {
  return map_chars(
      text, [](std::string& out, std::string_view rest, bool) { append_upper(out, first_char(rest)); });
}

std::string to_lower(std::string_view text) {
  return map_chars(text, append_lower);
}

std::string to_title(std::string_view text) {
  return map_chars(text, [](std::string& out, std::string_view rest, bool after_cased) {
    if (after_cased) {
      append_lower(out, rest, after_cased);
    } else {
      append_title(out, first_char(rest));
    }
  });
}

std::string to_capitalized(std::string_view text) {
  const char* const start = text.data();
  return map_chars(text, [start](std::string& out, std::string_view rest, bool after_cased) {
    if (rest.data() == start) {
      append_title(out, first_char(rest));
    } else {
      append_lower(out, rest, after_cased);
    }
  });
}

std::string to_swapped(std::string_view text) {
  return map_chars(text, [](std::string& out, std::string_view rest, bool after_cased) {
    if (is_upper(first_char(rest))) {
      append_lower(out, rest, after_cased);
    } else {
      append_upper(out, first_char(rest));
    }
  });
}

namespace {

bool strips(std::string_view c, const std::string_view* chars) {
  if (chars == nullptr) return is_space(first_char(c));
  for (size_t at = 0; at < chars->size();) {
    const size_t bytes = char_bytes(chars->substr(at));
    if (chars->substr(at, bytes) == c) return true;
    at += bytes;
  }
  return false;
}

}  // namespace

std::string_view strip_left(std::string_view text, const std::string_view* chars) {
  while (!text.empty()) {
    const size_t bytes = char_bytes(text);
    if (!strips(text.substr(0, bytes), chars)) break;
    text.remove_prefix(bytes);
  }
  return text;
}

std::string_view strip_right(std::string_view text, const std::string_view* chars) {
  while (!text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<unsigned char>(text[start]) & 0xc0u) == 0x80u) --start;
    if (!strips(text.substr(start), chars)) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

}  // namespace sparrow::jinja
