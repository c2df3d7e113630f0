// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/screen.h"

#include <unistd.h>

#include <cstdio>

#include "base/strf.h"
#include "cli/terminal/raw_terminal.h"

namespace sparrow::cli {

Screen::Screen(bool raw)
    : raw_(raw),
      colour_(wants_colour(STDOUT_FILENO)),
      to_terminal_(::isatty(STDOUT_FILENO) != 0),
      filter_(/*highlight=*/colour_) {}

void Screen::show(const AnswerPart& part) {
  using Kind = AnswerPart::Kind;
  switch (part.kind) {
    case Kind::kReasoning:
      enter(Style::kReasoning);
      break;
    case Kind::kContent:
      enter(Style::kContent);
      break;
    case Kind::kCallName:
      enter(Style::kNone);  // each call has a line of its own
      enter(Style::kCall);
      return write(strf("[call {}] ", terminal_line(part.text)));
    case Kind::kCallArguments:
      enter(Style::kCall);
      break;
  }
  write(raw_ ? std::string(part.text) : filter_.push(part.text));
}

void Screen::enter(Style style) {
  if (style == style_) return;
  if (style_ != Style::kNone) {
    write(filter_.finish());
    if (colour_) std::fputs("\033[0m", stdout);
    if (!at_line_start_) write("\n");
  }
  style_ = style;
  if (colour_ && style == Style::kReasoning) std::fputs("\033[2m", stdout);
  if (colour_ && style == Style::kCall) std::fputs("\033[36m", stdout);
  if (!colour_ && style == Style::kReasoning) write("(thinking) ");
}

void Screen::write(std::string_view text) {
  if (text.empty()) return;
  // Who reads our output wants the answer; thinking is for who watches.
  std::FILE* out = style_ == Style::kReasoning && !to_terminal_ ? stderr : stdout;
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
  at_line_start_ = text.ends_with('\n');
}

void Screen::end() {
  enter(Style::kNone);
  std::fflush(stdout);
}

void Screen::note(std::string_view text) {
  const std::string line = terminal_line(text);
  std::fputs((wants_colour(STDERR_FILENO) ? "\033[2m" + line + "\033[0m\n" : line + "\n").c_str(), stderr);
}

void Screen::error(std::string_view text) {
  std::fputs(strf("sparrow: {}\n", terminal_line(text)).c_str(), stderr);
}

bool Screen::is_closed() const {
  return std::ferror(stdout) != 0;
}

}  // namespace sparrow::cli
