// SPDX-License-Identifier: Apache-2.0
#include "base/json/json_writer.h"

#include <charconv>
#include <cmath>

#include "base/json/json.h"
#include "base/utf8.h"

namespace sparrow {
namespace {

// What follows the backslash for a character that may not stand for itself; 'u' means \u00XX, 0 no escape at
// all.
char escape_of(unsigned char c) {
  switch (c) {
    case '"':
    case '\\':
      return static_cast<char>(c);
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return c < 0x20 ? 'u' : '\0';
  }
}

template <typename T>
void append_integer(std::string& out, T value) {
  char buffer[24];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out.append(buffer, end);
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  size_t plain = 0;  // start of the run that needs no change
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      const Utf8Char next = decode_utf8(text.substr(i));
      if (!next.valid) {
        out.append(text, plain, i - plain).append(kReplacementUtf8);
        plain = i + next.length;
      }
      i += next.length;
      continue;
    }
    if (const char escape = escape_of(c)) {
      out.append(text, plain, i - plain) += '\\';
      out += escape;
      if (escape == 'u') out.append("00").append({kHex[c >> 4], kHex[c & 15]});
      plain = i + 1;
    }
    ++i;
  }
  out.append(text, plain) += '"';
}

void append_json_number(std::string& out, double value) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  if (text.front() == '-') {
    out += '-';
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_text = text.data() + e + 1;
  std::from_chars(*exponent_text == '+' ? exponent_text + 1 : exponent_text, end, exponent);
  // Python's limits: outside of them the number is clearer with an exponent.
  if (exponent < -4 || exponent >= 16) {
    out += text;
    return;
  }
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  if (exponent < 0) {
    out.append("0.").append(static_cast<size_t>(-exponent - 1), '0').append(digits);
    return;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    out.append(digits).append(whole - digits.size(), '0').append(".0");
    return;
  }
  out.append(digits, 0, whole).append(".").append(digits, whole);
}

void JsonWriter::new_line() {
  if (style_ == Style::kIndented) out_.append("\n").append(2 * static_cast<size_t>(depth_), ' ');
}

void JsonWriter::separate() {
  if (needs_comma_) out_ += style_ == Style::kSpaced ? ", " : ",";
  if (depth_ > 0 && !after_key_) new_line();
  needs_comma_ = after_key_ = false;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  ++depth_;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  --depth_;
  if (needs_comma_) new_line();  // it is not empty
  out_ += bracket;
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_json_string(out_, name);
  out_ += style_ == Style::kCompact ? ":" : ": ";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::string(std::string_view text) {
  separate();
  append_json_string(out_, text);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::number(double value) {
  separate();
  append_json_number(out_, value);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::signed_integer(int64_t value) {
  separate();
  append_integer(out_, value);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::unsigned_integer(uint64_t value) {
  separate();
  append_integer(out_, value);
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  needs_comma_ = true;
  return *this;
}

void write_json(const Json& value, JsonWriter& out) {
  if (value.is_object()) {
    out.begin_object();
    for (size_t i = 0; i < value.size(); ++i) write_json(value.member(i), out.key(value.key(i)));
    out.end_object();
  } else if (value.is_array()) {
    out.begin_array();
    for (size_t i = 0; i < value.size(); ++i) write_json(value.element(i), out);
    out.end_array();
  } else if (value.is_string()) {
    out.string(value.string_view());
  } else if (value.is_bool()) {
    out.boolean(value.as_bool().value());
  } else if (const auto digits = value.integer_digits()) {
    out.raw(*digits);
  } else if (value.is_number()) {
    const auto number = value.as_number();
    number.ok() ? out.number(number.value()) : out.raw("1e999");
  } else {
    out.null();
  }
}

}  // namespace sparrow
