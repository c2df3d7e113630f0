// SPDX-License-Identifier: Apache-2.0
#include "text/output/tool_number.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace sparrow {
namespace {

// The largest double has 309 digits before the point.
constexpr int64_t kMaxExpandedDigits = 309;

struct Decimal {
  bool negative = false;
  std::string whole, fraction;  // digits; at least one of the two is not empty
  bool has_point = false;
  std::string exponent_text;  // "e+5" as written; empty without one
  int64_t exponent = 0;       // clamped to +-1e9
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string take_digits(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  std::string digits(text.begin(), end);
  text.remove_prefix(digits.size());
  return digits;
}

std::optional<Decimal> read_decimal(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  while (!text.empty() && kBlanks.find(text.front()) != kBlanks.npos) text.remove_prefix(1);
  while (!text.empty() && kBlanks.find(text.back()) != kBlanks.npos) text.remove_suffix(1);
  Decimal number;
  if (!text.empty() && (text.front() == '-' || text.front() == '+')) {
    number.negative = text.front() == '-';
    text.remove_prefix(1);
  }
  number.whole = take_digits(text);
  if (!text.empty() && text.front() == '.') {
    number.has_point = true;
    text.remove_prefix(1);
    number.fraction = take_digits(text);
  }
  if (number.whole.empty() && number.fraction.empty()) return std::nullopt;
  if (!text.empty() && (text.front() == 'e' || text.front() == 'E')) {
    number.exponent_text = text;
    text.remove_prefix(1);
    const bool negative = !text.empty() && text.front() == '-';
    if (negative || (!text.empty() && text.front() == '+')) text.remove_prefix(1);
    const std::string digits = take_digits(text);
    if (digits.empty()) return std::nullopt;
    int64_t magnitude = 0;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude);
    if (read.ec != std::errc()) magnitude = 1'000'000'000;
    magnitude = std::min<int64_t>(magnitude, 1'000'000'000);
    number.exponent = negative ? -magnitude : magnitude;
  }
  if (!text.empty()) return std::nullopt;
  number.whole.erase(0, std::min(number.whole.find_first_not_of('0'), number.whole.size()));
  return number;
}

// Whether the value rounds to infinity as a double.
bool overflows(const Decimal& number) {
  const std::string digits = number.whole + number.fraction;
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return false;
  // Digits before the decimal point.
  const int64_t magnitude =
      static_cast<int64_t>(number.whole.size()) - static_cast<int64_t>(first) + number.exponent;
  if (magnitude != kMaxExpandedDigits) return magnitude > kMaxExpandedDigits;
  const std::string scaled = digits.substr(first, 1) + "." + digits.substr(first + 1) + "e308";
  double value = 0;
  return std::from_chars(scaled.data(), scaled.data() + scaled.size(), value).ec != std::errc();
}

std::string with_sign(const Decimal& number, std::string_view digits) {
  std::string out;
  if (number.negative && digits != "0") out += '-';
  return out += digits;
}

}  // namespace

std::optional<std::string> json_integer(std::string_view text) {
  const auto number = read_decimal(text);
  if (!number) return std::nullopt;
  if (!number->has_point && number->exponent_text.empty())
    return with_sign(*number, number->whole.empty() ? "0" : number->whole);
  std::string digits = number->whole + number->fraction;
  digits.erase(0, std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.empty()) return "0";
  const int64_t zeros = number->exponent - static_cast<int64_t>(number->fraction.size());
  if (static_cast<int64_t>(digits.size()) + zeros > kMaxExpandedDigits) return std::nullopt;
  if (zeros >= 0) return with_sign(*number, digits.append(static_cast<size_t>(zeros), '0'));
  // Whole only if all the digits that fall behind the point are zeros.
  if (-zeros >= static_cast<int64_t>(digits.size())) return std::nullopt;
  const size_t kept = digits.size() - static_cast<size_t>(-zeros);
  if (digits.find_first_not_of('0', kept) != std::string::npos) return std::nullopt;
  return with_sign(*number, digits.substr(0, kept));
}

std::optional<std::string> json_number(std::string_view text) {
  const auto number = read_decimal(text);
  if (!number || overflows(*number)) return std::nullopt;
  std::string out = number->negative ? "-" : "";
  out += number->whole.empty() ? "0" : number->whole;
  if (number->has_point) out.append(".").append(number->fraction.empty() ? "0" : number->fraction);
  return out + number->exponent_text;
}

}  // namespace sparrow
