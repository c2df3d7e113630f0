// SPDX-License-Identifier: Apache-2.0
// LineEditor: a line, or several, typed into a terminal with the usual keys, a history and pastes that stay
// in one piece. Draws on the rows below the cursor and nothing else.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/terminal/history.h"
#include "cli/terminal/keys.h"
#include "cli/terminal/line_buffer.h"
#include "cli/terminal/line_reader.h"
#include "cli/terminal/raw_terminal.h"

namespace sparrow::cli {

// The rows that a text takes on a screen of so many columns, and where the cursor then is.
struct TextRows {
  std::vector<std::string> rows;
  int cursor_row = 0, cursor_column = 0;
};
// `prompt` is UTF-8 without hidden characters.
TextRows lay_out(std::string_view prompt, const LineBuffer& buffer, int columns);

class LineEditor {
 public:
  // Both outlive the editor.
  LineEditor(RawTerminal& terminal, const History& history) : terminal_(terminal), history_(history) {}

  // Ctrl-C empties the line; on an empty one it is kInterrupt. Ctrl-D on an empty line is kEnd.
  UserInput read(std::string_view prompt);

 private:
  std::optional<UserInput> handle(const Key& key);
  std::optional<UserInput> handle_control(char letter);
  void edit(const Key& key);
  std::optional<UserInput> enter();
  // To the next entry in that direction that starts with, or has in it, what was typed.
  void recall(bool older, bool anywhere);
  void draw(const LineBuffer& buffer);
  void leave();  // the cursor goes below what was drawn
  void put(std::string_view text) const;

  RawTerminal& terminal_;
  const History& history_;
  KeyDecoder keys_;
  LineBuffer buffer_;
  std::string prompt_;
  std::optional<size_t> age_;  // of the history's entry that is shown
  std::string draft_;          // what was typed before it
  int drawn_row_ = 0;          // of the cursor, within what was drawn
};

}  // namespace sparrow::cli
