// SPDX-License-Identifier: Apache-2.0
#include "media/source/data_url.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/strf.h"
#include "base/utf8.h"
#include "media/source/ascii.h"

namespace sparrow {
namespace {

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr uint8_t kNoDigit = 0xFF;
constexpr size_t kMaxTypeBytes = 256;  // of all that stands before the comma

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
  return invalid(strf("base64 has a character at {} that does not belong there", at));
}

// What media types are made of.
bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return is_alphanumeric(c) || kMarks.find(c) != std::string_view::npos;
  });
}

// TYPE/SUBTYPE, in lower case; empty: it is none.
std::string media_type(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == text.npos || !is_token(text.substr(0, slash)) || !is_token(text.substr(slash + 1))) return "";
  return lower(text);
}

}  // namespace

Result<MediaBytes> decode_base64(std::string_view text, size_t max_bytes) {
  if (text.size() % 4 != 0)
    return invalid(strf("base64 of {} characters: the number must be a multiple of 4", text.size()));
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  const size_t size = text.size() / 4 * 3 - padding;
  if (size > max_bytes) return invalid(strf("{} bytes; at most {} are allowed", size, max_bytes));
  MediaBytes bytes(size);
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

bool is_data_url(std::string_view url) {
  return lower(url.substr(0, 5)) == "data:";
}

Result<DataUrl> decode_data_url(std::string_view url, size_t max_bytes) {
  if (!is_data_url(url)) return invalid("not a data URL");
  url.remove_prefix(5);
  const size_t comma = url.substr(0, kMaxTypeBytes).find(',');
  if (comma == url.npos) return invalid("a data URL without a comma after its media type");
  std::string_view head = url.substr(0, comma);
  const size_t last = head.rfind(';');
  if (last == head.npos || lower(head.substr(last + 1)) != "base64")
    return invalid("a data URL must end its media type with \";base64\"");
  head = head.substr(0, last);
  const size_t parameters = std::min(head.find(';'), head.size());
  DataUrl result{.media_type = media_type(head.substr(0, parameters))};
  if (result.media_type.empty())
    return invalid(strf("a data URL of the media type \"{}\"",
                        excerpt(replace_invalid_utf8(head.substr(0, parameters)), 64)));
  result.bytes = SPARROW_TRY(decode_base64(url.substr(comma + 1), max_bytes));
  return result;
}

}  // namespace sparrow
