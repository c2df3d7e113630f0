// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/raw_terminal.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string_view>

namespace sparrow::cli {
namespace {

constexpr std::string_view kPasteOn = "\033[?2004h", kPasteOff = "\033[?2004l";
constexpr std::array<int, 3> kEndings{SIGTERM, SIGHUP, SIGQUIT};

// For the signal handler: where to give what back.
termios original;
int original_in = -1, original_out = -1;

void put(int fd, std::string_view text) {
  [[maybe_unused]] const ssize_t ignored = ::write(fd, text.data(), text.size());
}

void give_back() {
  put(original_out, kPasteOff);
  ::tcsetattr(original_in, TCSADRAIN, &original);
}

void give_back_and_end(int signal_number) {
  give_back();
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
}

}  // namespace

bool takes_escapes(int fd) {
  const char* kind = std::getenv("TERM");
  return ::isatty(fd) != 0 && kind && *kind && std::string_view(kind) != "dumb";
}

bool wants_colour(int fd) {
  const char* without = std::getenv("NO_COLOR");
  return takes_escapes(fd) && !(without && *without);
}

std::unique_ptr<RawTerminal> RawTerminal::open(int in, int out) {
  if (::isatty(in) == 0 || !takes_escapes(out) || ::tcgetattr(in, &original) != 0) return nullptr;
  original_in = in;
  original_out = out;
  for (const int signal_number : kEndings) ::signal(signal_number, give_back_and_end);
  put(out, kPasteOn);
  return std::unique_ptr<RawTerminal>(new RawTerminal(in, out));
}

RawTerminal::~RawTerminal() {
  give_back();
  for (const int signal_number : kEndings) ::signal(signal_number, SIG_DFL);
}

void RawTerminal::edit() {
  termios mode = original;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
  mode.c_iflag &= ~static_cast<tcflag_t>(IXON);
  mode.c_cc[VMIN] = 1;
  mode.c_cc[VTIME] = 0;
  ::tcsetattr(in_, TCSADRAIN, &mode);  // what was typed ahead stays
}

void RawTerminal::watch() {
  termios mode = original;
  mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | IEXTEN);
  ::tcsetattr(in_, TCSADRAIN, &mode);
}

void RawTerminal::suspend() {
  give_back();
  ::raise(SIGTSTP);
  put(out_, kPasteOn);
  edit();
}

RawTerminal::Size RawTerminal::size() const {
  winsize size{};
  if (::ioctl(out_, TIOCGWINSZ, &size) != 0) size = {};
  return {size.ws_row > 0 ? size.ws_row : 24, size.ws_col >= 8 ? size.ws_col : 80};
}

}  // namespace sparrow::cli
