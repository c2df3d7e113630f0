// SPDX-License-Identifier: Apache-2.0
// Screen: where answers are shown. Everything from the server goes through its filter; thinking is dimmed and
// calls are coloured where the terminal can.
#pragma once

#include <string>
#include <string_view>

#include "cli/chat/answer_stream.h"
#include "cli/terminal/terminal_text.h"

namespace sparrow::cli {

class Screen {
 public:
  // `raw`: text as the server sent it, for programs that read it.
  explicit Screen(bool raw);

  void show(const AnswerPart& part);
  // Ends the answer's last line.
  void end();
  // One line about the conversation, on the side: dimmed, to stderr.
  void note(std::string_view text);
  // One line that says what went wrong.
  void error(std::string_view text);

  // Writing failed: the reader of our output has gone.
  bool is_closed() const;

 private:
  enum class Style : uint8_t { kNone, kReasoning, kContent, kCall };
  void enter(Style style);
  void write(std::string_view text);

  bool raw_, colour_, to_terminal_;
  Style style_ = Style::kNone;
  bool at_line_start_ = true;
  TerminalText filter_;
};

}  // namespace sparrow::cli
