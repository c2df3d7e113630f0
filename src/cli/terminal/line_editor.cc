// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/line_editor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/strf.h"
#include "base/utf8.h"
#include "cli/terminal/terminal_text.h"
#include "text/unicode.h"

namespace sparrow::cli {
namespace {

using Kind = Key::Kind;

constexpr std::string_view kMorePrompt = ". ";  // before the second line and those after it
constexpr int kEscapeMs = 50;                   // the rest of a key's sequence comes at once

// A new size of the window interrupts the wait for a key, and the line is drawn again.
void on_resize(int) {}

}  // namespace

TextRows lay_out(std::string_view prompt, const LineBuffer& buffer, int columns) {
  TextRows out{.rows = {""}};
  int column = 0;
  const auto new_row = [&] {
    out.rows.emplace_back();
    column = 0;
  };
  const auto add = [&](std::string_view shown, int width) {
    if (column + width > columns && column > 0) new_row();
    out.rows.back() += shown;
    column += width;
  };
  int length;
  for (size_t i = 0; i < prompt.size(); i += static_cast<size_t>(length)) {
    const uint32_t c = decode_valid_utf8(prompt.data() + i, length);
    add(prompt.substr(i, static_cast<size_t>(length)), display_width(c));
  }
  const std::string& text = buffer.text();
  for (size_t i = 0;; i += static_cast<size_t>(length)) {
    if (i == buffer.cursor()) {
      if (column >= columns) new_row();  // past the last column the cursor cannot stand
      out.cursor_row = static_cast<int>(out.rows.size()) - 1;
      out.cursor_column = column;
    }
    if (i == text.size()) return out;
    const uint32_t c = decode_valid_utf8(text.data() + i, length);
    if (c == '\n') {
      new_row();
      add(kMorePrompt, static_cast<int>(kMorePrompt.size()));
    } else if (c == '\t') {
      add(" ", 1);
      while (column % 8 != 0 && column < columns) add(" ", 1);
    } else if (is_hidden_character(c)) {
      const std::string shown = shown_hidden_character(c);
      add("\033[7m" + shown + "\033[27m", static_cast<int>(shown.size()));
    } else {
      add(std::string_view(text).substr(i, static_cast<size_t>(length)), display_width(c));
    }
  }
}

UserInput LineEditor::read(std::string_view prompt) {
  prompt_ = prompt;
  buffer_.set("");
  age_.reset();
  drawn_row_ = 0;
  terminal_.edit();
  struct sigaction resize {
  }, before{};
  resize.sa_handler = on_resize;
  ::sigaction(SIGWINCH, &resize, &before);
  draw(buffer_);
  std::optional<UserInput> done;
  for (bool quiet = false; !done;) {
    if (const auto key = keys_.next(quiet)) {
      done = handle(*key);
      // A burst of keys is drawn once.
      if (!done && !keys_.has_pending()) draw(buffer_);
      continue;
    }
    pollfd waiting{.fd = terminal_.in(), .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waiting, 1, keys_.has_pending() ? kEscapeMs : -1);
    quiet = ready == 0;
    if (ready < 0) draw(buffer_);
    if (ready <= 0) continue;
    char bytes[4096];
    const ssize_t n = ::read(terminal_.in(), bytes, sizeof bytes);
    if (n == 0 || (n < 0 && errno != EINTR)) done = UserInput{UserInput::Kind::kEnd};
    if (n > 0) keys_.feed({bytes, static_cast<size_t>(n)});
  }
  ::sigaction(SIGWINCH, &before, nullptr);
  terminal_.watch();
  return *done;
}

std::optional<UserInput> LineEditor::handle(const Key& key) {
  switch (key.kind) {
    case Kind::kEnter:
      return enter();
    case Kind::kControl:
      return handle_control(key.text[0]);
    case Kind::kUp:
      if (!buffer_.line_up()) recall(/*older=*/true, /*anywhere=*/false);
      break;
    case Kind::kDown:
      if (!buffer_.line_down()) recall(/*older=*/false, /*anywhere=*/false);
      break;
    case Kind::kLeft:
      buffer_.left();
      break;
    case Kind::kRight:
      buffer_.right();
      break;
    case Kind::kHome:
      buffer_.line_start();
      break;
    case Kind::kEnd:
      buffer_.line_end();
      break;
    case Kind::kWordLeft:
      buffer_.word_left();
      break;
    case Kind::kWordRight:
      buffer_.word_right();
      break;
    default:
      edit(key);
  }
  return std::nullopt;
}

void LineEditor::edit(const Key& key) {
  age_.reset();
  switch (key.kind) {
    case Kind::kText:
    case Kind::kPaste:
      return buffer_.insert(key.text);
    case Kind::kNewline:
      return buffer_.insert("\n");
    case Kind::kBackspace:
      return buffer_.erase_before();
    case Kind::kDelete:
      return buffer_.erase_after();
    case Kind::kCutWord:
      return buffer_.cut_word_before();
    default:
      return;
  }
}

std::optional<UserInput> LineEditor::handle_control(char letter) {
  if (std::string_view("kuwyd").find(letter) != std::string_view::npos) age_.reset();  // they change the text
  switch (letter) {
    case 'a':
      buffer_.line_start();
      break;
    case 'b':
      buffer_.left();
      break;
    case 'e':
      buffer_.line_end();
      break;
    case 'f':
      buffer_.right();
      break;
    case 'p':
      return handle({Kind::kUp});
    case 'n':
      return handle({Kind::kDown});
    case 'r':
      recall(/*older=*/true, /*anywhere=*/true);
      break;
    case 'k':
      buffer_.cut_to_line_end();
      break;
    case 'u':
      buffer_.cut_to_line_start();
      break;
    case 'w':
      buffer_.cut_word_before();
      break;
    case 'y':
      buffer_.yank();
      break;
    case 'l':
      put("\033[H\033[2J");
      drawn_row_ = 0;
      break;
    case 'z':
      leave();
      terminal_.suspend();
      break;
    case 'c':
      leave();
      if (buffer_.empty()) return UserInput{UserInput::Kind::kInterrupt};
      buffer_.set("");
      age_.reset();
      break;
    case 'd':
      if (!buffer_.empty()) return handle({Kind::kDelete});
      leave();
      return UserInput{UserInput::Kind::kEnd};
    default:
      break;
  }
  return std::nullopt;
}

std::optional<UserInput> LineEditor::enter() {
  if (buffer_.cursor() == buffer_.text().size()) {
    if (std::string line = buffer_.text(); take_continuation(line)) {
      buffer_.set(line + "\n");
      return std::nullopt;
    }
  }
  leave();
  return UserInput{UserInput::Kind::kText, buffer_.text()};
}

void LineEditor::recall(bool older, bool anywhere) {
  if (!age_ && !older) return;
  if (!age_) draft_ = buffer_.text();
  for (size_t next = age_ ? *age_ + (older ? 1 : size_t(-1)) : 0; next < history_.size();
       next += older ? 1 : size_t(-1)) {
    const std::string& entry = history_.entry(next);
    const bool fits = anywhere ? entry.find(draft_) != std::string::npos : entry.starts_with(draft_);
    if (!fits || entry == buffer_.text()) continue;
    age_ = next;
    buffer_.set(entry);
    return;
  }
  if (older) return;
  age_.reset();
  buffer_.set(draft_);
}

void LineEditor::draw(const LineBuffer& buffer) {
  const RawTerminal::Size size = terminal_.size();
  const TextRows text = lay_out(prompt_, buffer, size.columns);
  // Of a text that is taller than the screen the part around the cursor is shown.
  const int num_rows = static_cast<int>(text.rows.size());
  const int first = std::max(0, std::min(text.cursor_row - size.rows / 2, num_rows - size.rows));
  const int last = std::min(num_rows, first + size.rows) - 1;
  std::string out = drawn_row_ > 0 ? strf("\033[{}A", drawn_row_) : "";
  out += "\r\033[J";
  for (int row = first; row <= last; ++row) {
    if (row > first) out += "\r\n";
    out += text.rows[static_cast<size_t>(row)];
  }
  if (last > text.cursor_row) out += strf("\033[{}A", last - text.cursor_row);
  out += "\r";
  if (text.cursor_column > 0) out += strf("\033[{}C", text.cursor_column);
  drawn_row_ = text.cursor_row - first;
  put(out);
}

void LineEditor::leave() {
  LineBuffer at_end;
  at_end.set(buffer_.text());
  draw(at_end);
  put("\r\n");
  drawn_row_ = 0;
}

void LineEditor::put(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = ::write(terminal_.out(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace sparrow::cli
