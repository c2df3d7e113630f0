// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/terminal_text.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

struct Range {
  uint32_t first, last;
};

// Unicode's format characters and default ignorables that are invisible by themselves, ascending.
constexpr std::array<Range, 17> kInvisible{{
    {0x00AD, 0x00AD},    // soft hyphen
    {0x061C, 0x061C},    // Arabic letter mark
    {0x115F, 0x1160},    // Hangul fillers
    {0x17B4, 0x17B5},    // Khmer inherent vowels
    {0x180B, 0x180F},    // Mongolian selectors
    {0x200B, 0x200B},    // zero width space
    {0x200E, 0x200F},    // direction marks
    {0x2028, 0x202E},    // separators of lines and paragraphs, direction embeddings and overrides
    {0x2060, 0x206F},    // word joiner, invisible operators, direction isolates
    {0x3164, 0x3164},    // Hangul filler
    {0xFE00, 0xFE0D},    // variation selectors, but the two of emoji
    {0xFEFF, 0xFEFF},    // byte order mark
    {0xFFA0, 0xFFA0},    // half-width Hangul filler
    {0xFFF9, 0xFFFB},    // annotations
    {0x1BCA0, 0x1BCA3},  // shorthand controls
    {0x1D173, 0x1D17A},  // musical controls
    {0xE0000, 0xE0FFF},  // tags and more variation selectors: ASCII in disguise
}};

}  // namespace

bool is_hidden_character(uint32_t c) {
  if (c < 0x20 || (c >= 0x7F && c <= 0x9F)) return true;
  const auto* range = std::lower_bound(kInvisible.begin(), kInvisible.end(), c,
                                       [](const Range& r, uint32_t value) { return r.last < value; });
  return range != kInvisible.end() && range->first <= c;
}

std::string shown_hidden_character(uint32_t c) {
  if (c < 0x80) return strf("\\x{:02x}", c);
  return c < 0x10000 ? strf("\\u{:04x}", c) : strf("\\U{:08x}", c);
}

std::string TerminalText::push(std::string_view bytes) {
  std::string repaired, out;
  add(out, utf8_.push(bytes, repaired));
  return out;
}

std::string TerminalText::finish() {
  std::string out;
  add(out, utf8_.finish());
  if (std::exchange(return_waits_, false)) add_hidden(out, '\r');
  return out;
}

void TerminalText::add(std::string& out, std::string_view valid) {
  for (int length; !valid.empty(); valid.remove_prefix(static_cast<size_t>(length))) {
    const uint32_t c = decode_valid_utf8(valid.data(), length);
    if (std::exchange(return_waits_, c == '\r')) c == '\n' ? void(out += '\r') : add_hidden(out, '\r');
    if (c == '\r') continue;
    if (c != '\n' && c != '\t' && is_hidden_character(c))
      add_hidden(out, c);
    else
      out += valid.substr(0, static_cast<size_t>(length));
  }
}

void TerminalText::add_hidden(std::string& out, uint32_t c) const {
  const std::string shown = shown_hidden_character(c);
  out += highlight_ ? "\033[7m" + shown + "\033[27m" : shown;
}

std::string terminal_text(std::string_view text) {
  TerminalText filter(/*highlight=*/false);
  std::string out = filter.push(text);
  return out += filter.finish();
}

std::string terminal_line(std::string_view text) {
  std::string out;
  const std::string valid = replace_invalid_utf8(text);
  int length;
  for (size_t i = 0; i < valid.size(); i += static_cast<size_t>(length)) {
    const uint32_t c = decode_valid_utf8(valid.data() + i, length);
    out += is_hidden_character(c) ? shown_hidden_character(c) : valid.substr(i, static_cast<size_t>(length));
  }
  return out;
}

}  // namespace sparrow::cli
