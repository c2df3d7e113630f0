// SPDX-License-Identifier: Apache-2.0
// Text from elsewhere -> text that is safe to show. A terminal obeys control characters: it would fill the
// clipboard, set the title or overwrite what was there. Here they come out as visible characters instead.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/utf8.h"

namespace sparrow::cli {

// Controls (C0, DEL, C1), direction overrides and characters that nobody can see. Joiners and the variation
// selectors of emoji do not count: scripts and emoji need them, and they do nothing by themselves. The caller
// decides about tab and newline.
bool is_hidden_character(uint32_t code_point);
// How such a character is shown: \x1b, \u202e, \U000e0041.
std::string shown_hidden_character(uint32_t code_point);

// Bytes in pieces, cut anywhere -> what to show of them. Tab, newline and CR LF stay, what is not UTF-8
// becomes U+FFFD.
class TerminalText {
 public:
  // `highlight`: hidden characters in reverse video, so that they cannot be taken for text.
  explicit TerminalText(bool highlight) : highlight_(highlight) {}

  std::string push(std::string_view bytes);
  // What was still waiting for its end. As new afterwards.
  std::string finish();

 private:
  void add(std::string& out, std::string_view valid);
  void add_hidden(std::string& out, uint32_t code_point) const;

  bool highlight_;
  bool return_waits_ = false;  // a carriage return came: it is harmless only before a newline
  Utf8Stream utf8_;
};

// The whole of a text, without highlights.
std::string terminal_text(std::string_view text);
// The same on one line, for messages: newlines and tabs are shown too.
std::string terminal_line(std::string_view text);

}  // namespace sparrow::cli
