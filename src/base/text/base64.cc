// SPDX-License-Identifier: Apache-2.0
#include "base/text/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 0xFF;

constexpr std::array<uint8_t, 256> digit_values() {
  std::array<uint8_t, 256> values{};
  values.fill(kNoDigit);
  for (size_t i = 0; i < kAlphabet.size(); ++i)
    values[static_cast<uint8_t>(kAlphabet[i])] = static_cast<uint8_t>(i);
  return values;
}
constexpr std::array<uint8_t, 256> kDigits = digit_values();

Error invalid(std::string message) {
  return {Errc::kInvalidArgument, std::move(message)};
}

Error bad_digit(std::string_view text, size_t from) {
  size_t at = from;
  while (at < text.size() && kDigits[static_cast<uint8_t>(text[at])] != kNoDigit) ++at;
  const bool is_blank = at < text.size() && std::string_view(" \t\r\n").find(text[at]) != text.npos;
  return invalid(strf("base64 has {} at {} that does not belong there",
                      is_blank ? "a space or the end of a line" : "a character", at));
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t group = 0;
    for (size_t i = 0; i < 3; ++i)
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0u);
    for (size_t i = 0; i < 4; ++i) out += i <= count ? kAlphabet[group >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

Result<std::vector<std::byte>> decode_base64(std::string_view text, size_t max_bytes) {
  // What is no digit explains an odd length: the ends of lines, most of the time.
  if (text.size() % 4 != 0)
    if (const size_t at = text.find_first_not_of(kAlphabet); at != text.npos && text[at] != '=')
      return bad_digit(text, at);
  if (text.size() % 4 != 0)
    return invalid(strf("base64 of {} characters: the number must be a multiple of 4", text.size()));
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const size_t size = text.size() / 4 * 3 - padding;
  if (size > max_bytes) return invalid(strf("{} bytes; at most {} are allowed", size, max_bytes));
  std::vector<std::byte> bytes(size);
  const size_t digits = text.size() - padding;
  uint32_t group = 0;
  size_t written = 0;
  for (size_t i = 0; i < digits; ++i) {
    const uint8_t value = kDigits[static_cast<uint8_t>(text[i])];
    if (value == kNoDigit) return bad_digit(text, i);
    group = group << 6 | value;
    if (i % 4 == 0) continue;
    // The second digit completes a byte and has 4 bits left over, the third 2, the fourth none.
    const int left_over = i % 4 == 1 ? 4 : i % 4 == 2 ? 2 : 0;
    bytes[written++] = static_cast<std::byte>(group >> left_over & 0xFF);
  }
  const uint32_t unused = padding == 2 ? 0xF : padding == 1 ? 0x3 : 0;
  if (group & unused) return invalid("base64 ends with bits that belong to no byte");
  return bytes;
}

}  // namespace sparrow
