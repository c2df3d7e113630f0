// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal/line_reader.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/utf8.h"

namespace sparrow::cli {

bool take_continuation(std::string& line) {
  size_t backslashes = 0;
  while (backslashes < line.size() && line[line.size() - 1 - backslashes] == '\\') ++backslashes;
  if (backslashes % 2 == 0) return false;  // an escaped one is text
  line.pop_back();
  return true;
}

// False: no more comes, or a signal says stop.
bool LineReader::fill() {
  char buffer[65536];
  ssize_t n;
  do n = ::read(fd_, buffer, sizeof buffer);
  while (n < 0 && errno == EINTR && !interrupted_);
  if (n <= 0) {
    at_end_ = n == 0 || errno != EINTR;
    return false;
  }
  in_.append(buffer, static_cast<size_t>(n));
  return true;
}

UserInput LineReader::read() {
  std::string text;
  for (size_t searched = 0;;) {
    const size_t end = in_.find('\n', searched);
    if (end == std::string::npos) {
      searched = in_.size();
      if (!at_end_ && fill()) continue;
      if (!at_end_) return {UserInput::Kind::kInterrupt};
      text += std::exchange(in_, {});
      if (text.empty()) return {UserInput::Kind::kEnd};
      return {UserInput::Kind::kText, replace_invalid_utf8(text)};
    }
    std::string line = in_.substr(0, end);
    in_.erase(0, end + 1);
    searched = 0;
    if (line.ends_with('\r')) line.pop_back();
    const bool goes_on = take_continuation(line);
    text += line;
    if (!goes_on) return {UserInput::Kind::kText, replace_invalid_utf8(text)};
    text += '\n';
  }
}

UserInput LineReader::read_all() {
  while (fill()) {
  }
  if (in_.empty()) return {UserInput::Kind::kEnd};
  return {UserInput::Kind::kText, replace_invalid_utf8(std::exchange(in_, {}))};
}

}  // namespace sparrow::cli
