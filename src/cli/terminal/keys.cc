// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/keys.h"

#include <algorithm>

#include "base/utf8.h"

namespace sparrow::cli {
namespace {

using Kind = Key::Kind;

constexpr char kEscape = '\033';
constexpr std::string_view kPasteEnd = "\033[201~";

// What stands between "ESC [" (or "ESC O") and the end: parameters, then one letter.
Kind kind_of(std::string_view parameters, char last) {
  // 1;5C: with Ctrl; 1;3C: with Alt.
  const bool by_words = parameters.ends_with(";5") || parameters.ends_with(";3");
  switch (last) {
    case 'A':
      return Kind::kUp;
    case 'B':
      return Kind::kDown;
    case 'C':
      return by_words ? Kind::kWordRight : Kind::kRight;
    case 'D':
      return by_words ? Kind::kWordLeft : Kind::kLeft;
    case 'H':
      return Kind::kHome;
    case 'F':
      return Kind::kEnd;
    case '~':
      if (parameters == "1" || parameters == "7") return Kind::kHome;
      if (parameters == "4" || parameters == "8") return Kind::kEnd;
      if (parameters == "3") return Kind::kDelete;
      if (parameters == "200") return Kind::kPaste;
      return Kind::kUnknown;
    default:
      return Kind::kUnknown;
  }
}

Kind alt_kind(char c) {
  switch (c) {
    case '\r':
    case '\n':
      return Kind::kNewline;
    case 'b':
      return Kind::kWordLeft;
    case 'f':
      return Kind::kWordRight;
    case 0x7f:
    case '\b':
      return Kind::kCutWord;
    default:
      return Kind::kUnknown;
  }
}

}  // namespace

Key KeyDecoder::take(size_t size, Kind kind) {
  Key key{kind, in_.substr(0, size)};
  in_.erase(0, size);
  return key;
}

std::optional<Key> KeyDecoder::next(bool quiet) {
  if (pasting_) return paste();
  if (in_.empty()) return std::nullopt;
  const char first = in_[0];
  if (first == kEscape) return escape(quiet);
  if (first == '\r' || first == '\n') return take(1, Kind::kEnter);
  if (first == 0x7f || first == '\b') return take(1, Kind::kBackspace);
  if (first == '\t') return take(1, Kind::kText);
  if (static_cast<unsigned char>(first) < 0x20) {
    Key key = take(1, Kind::kControl);
    key.text[0] = static_cast<char>(key.text[0] | 0x60);
    return key;
  }
  const Utf8Char c = decode_utf8(in_);
  if (c.truncated && !quiet) return std::nullopt;
  return take(c.length, Kind::kText);
}

std::optional<Key> KeyDecoder::escape(bool quiet) {
  const auto incomplete = [&]() -> std::optional<Key> {
    if (!quiet) return std::nullopt;
    return take(in_.size(), Kind::kUnknown);
  };
  if (in_.size() == 1) return incomplete();
  if (in_[1] != '[' && in_[1] != 'O') return take(2, alt_kind(in_[1]));
  size_t end = 2;
  while (end < in_.size() && in_[end] >= 0x20 && in_[end] < 0x40) ++end;
  if (end == in_.size()) return incomplete();
  const Kind kind = kind_of(std::string_view(in_).substr(2, end - 2), in_[end]);
  Key key = take(end + 1, kind);
  if (kind != Kind::kPaste) return key;
  pasting_ = true;
  return paste();
}

std::optional<Key> KeyDecoder::paste() {
  const size_t end = in_.find(kPasteEnd, searched_);
  if (end == std::string::npos) {
    // A long paste comes in many pieces: each is looked at once.
    searched_ = in_.size() - std::min(in_.size(), kPasteEnd.size());
    return std::nullopt;
  }
  pasting_ = false;
  searched_ = 0;
  Key key = take(end, Kind::kPaste);
  in_.erase(0, kPasteEnd.size());
  return key;
}

}  // namespace sparrow::cli
