// SPDX-License-Identifier: Apache-2.0
// UTF-8, read strictly: no overlong forms, no surrogates, nothing past U+10FFFF. What is not UTF-8 is cut as
// Unicode recommends and Python, Rust and browsers do: one U+FFFD for each longest start of a sequence that
// could have been one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sparrow {

inline constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";
inline constexpr uint32_t kReplacementCodePoint = 0xFFFD;

struct Utf8Char {
  uint32_t code_point;  // U+FFFD where not valid
  uint8_t length;       // bytes it takes; where not valid, the bytes that one replacement stands for
  bool valid;
  bool truncated;  // not valid, but only because the text ends: more bytes could complete it
};

// The first character of a text that is not empty.
Utf8Char decode_utf8(std::string_view text);

// Bytes from the start that are whole, valid characters.
size_t valid_utf8_prefix(std::string_view text);

// The text with replacements for what is not UTF-8.
std::string replace_invalid_utf8(std::string_view text);

// At most this many bytes of what somebody sent are shown in a message about it.
inline constexpr size_t kMaxExcerptBytes = 200;
// The text, or its beginning and "...": whole characters, `max_bytes` in all.
std::string excerpt(std::string text, size_t max_bytes = kMaxExcerptBytes);

// Bytes that come in pieces, cut anywhere -> UTF-8. What it has given out is never taken back: a character
// goes out when it is whole, a replacement only when no further byte could have completed what it stands for.
class Utf8Stream {
 public:
  // What the next bytes make certain: a view of `bytes` where they can stand as they are, else of `repaired`.
  std::string_view push(std::string_view bytes, std::string& repaired);
  // No more bytes come: the replacement of those that still waited, if any. As new afterwards.
  std::string_view finish();

 private:
  std::string waiting_;  // at most three bytes that begin a character
};

// Surrogates and values past U+10FFFF become U+FFFD.
void append_utf8(std::string& out, uint32_t code_point);

// For text known to be valid, at a position before its end.
inline uint32_t decode_valid_utf8(const char* p, int& length) {
  const auto b = [p](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t lead = b(0);
  if (lead < 0x80) {
    length = 1;
    return lead;
  }
  if (lead < 0xE0) {
    length = 2;
    return (lead & 0x1F) << 6 | (b(1) & 0x3F);
  }
  if (lead < 0xF0) {
    length = 3;
    return (lead & 0x0F) << 12 | (b(1) & 0x3F) << 6 | (b(2) & 0x3F);
  }
  length = 4;
  return (lead & 0x07) << 18 | (b(1) & 0x3F) << 12 | (b(2) & 0x3F) << 6 | (b(3) & 0x3F);
}

}  // namespace sparrow
