// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstring>
#include <utility>

namespace sparrow {
namespace {

constexpr uint64_t kHighBits = 0x8080808080808080u;

}  // namespace

Utf8Char decode_utf8(std::string_view text) {
  const auto b = [text](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const auto bad = [](size_t length, bool truncated) {
    return Utf8Char{kReplacementCodePoint, static_cast<uint8_t>(length), false, truncated};
  };
  const uint32_t lead = b(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return bad(1, false);
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte alone decides about overlong forms, surrogates and the upper end.
  const uint32_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint32_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  uint32_t code_point = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return bad(i, true);
    const bool fits = i == 1 ? b(i) >= low && b(i) <= high : (b(i) & 0xC0) == 0x80;
    if (!fits) return bad(i, false);
    code_point = code_point << 6 | (b(i) & 0x3F);
  }
  return {code_point, static_cast<uint8_t>(length), true, false};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    while (i + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof word);
      if (word & kHighBits) break;
      i += sizeof word;
    }
    if (i == text.size()) break;
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Char next = decode_utf8(text.substr(i));
    if (!next.valid) break;
    i += next.length;
  }
  return i;
}

std::string replace_invalid_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string out;
  out.reserve(text.size());
  const std::string_view certain = stream.push(text, out);
  if (certain.data() != out.data()) out = certain;
  return out += stream.finish();
}

std::string excerpt(std::string text, size_t max_bytes) {
  constexpr std::string_view kEllipsis = "...";
  if (text.size() <= max_bytes) return text;
  size_t cut = max_bytes - kEllipsis.size();
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0u) == 0x80u) --cut;
  text.resize(cut);
  return text += kEllipsis;
}

std::string_view Utf8Stream::push(std::string_view bytes, std::string& repaired) {
  if (waiting_.empty()) {
    const size_t valid = valid_utf8_prefix(bytes);
    if (valid == bytes.size()) return bytes;
    if (const std::string_view rest = bytes.substr(valid); decode_utf8(rest).truncated) {
      waiting_ = rest;
      return bytes.substr(0, valid);
    }
  }
  const std::string joined = std::exchange(waiting_, {}).append(bytes);
  std::string_view rest = joined;
  repaired.clear();
  while (true) {
    const size_t valid = valid_utf8_prefix(rest);
    repaired += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) return repaired;
    const Utf8Char broken = decode_utf8(rest);
    if (broken.truncated) {
      waiting_ = rest;
      return repaired;
    }
    repaired += kReplacementUtf8;
    rest.remove_prefix(broken.length);
  }
}

std::string_view Utf8Stream::finish() {
  return std::exchange(waiting_, {}).empty() ? std::string_view() : kReplacementUtf8;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = kReplacementCodePoint;
  const auto put = [&out](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) return put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  if (c < 0x10000) return put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
}

}  // namespace sparrow
