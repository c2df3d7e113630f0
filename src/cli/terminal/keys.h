// SPDX-License-Identifier: Apache-2.0
// KeyDecoder: bytes from a terminal in raw mode -> keys. Reads the sequences of xterm and its kin, and
// bracketed paste.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sparrow::cli {

struct Key {
  enum class Kind : uint8_t {
    kText,     // one typed character
    kPaste,    // pasted text, however many lines
    kControl,  // text is the letter: "a" for Ctrl-A
    kEnter,
    kNewline,  // Alt-Enter
    kBackspace,
    kDelete,
    kLeft,
    kRight,
    kUp,
    kDown,
    kHome,
    kEnd,
    kWordLeft,
    kWordRight,
    kCutWord,  // Alt-Backspace
    kUnknown,  // a sequence that means nothing here
  };
  Kind kind;
  std::string text = {};
};

class KeyDecoder {
 public:
  void feed(std::string_view bytes) { in_ += bytes; }
  // The next whole key. `quiet`: nothing more came for a while, so an escape is the key of that name.
  std::optional<Key> next(bool quiet = false);
  bool has_pending() const { return !in_.empty(); }

 private:
  std::optional<Key> escape(bool quiet);
  std::optional<Key> paste();
  Key take(size_t size, Key::Kind kind);

  std::string in_;
  bool pasting_ = false;
  size_t searched_ = 0;  // of in_, for the end of a paste
};

}  // namespace sparrow::cli
