// SPDX-License-Identifier: Apache-2.0
#include "support/terminal_program.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

namespace sparrow::test {
namespace {

constexpr int kPatienceMs = 60'000;

}  // namespace

TerminalProgram::TerminalProgram(const std::vector<std::string>& args,
                                 const std::vector<std::pair<std::string, std::string>>& environment) {
  winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  std::vector<std::string> words{SPARROW_BINARY};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_ = ::forkpty(&fd_, nullptr, nullptr, &size);
  SPARROW_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    ::setenv("TERM", "xterm", 1);
    ::unsetenv("NO_COLOR");
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::execv(SPARROW_BINARY, argv.data());
    ::_exit(127);
  }
}

TerminalProgram::~TerminalProgram() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(fd_);
}

void TerminalProgram::type(std::string_view keys) const {
  while (!keys.empty()) {
    const ssize_t n = ::write(fd_, keys.data(), keys.size());
    SPARROW_CHECK(n > 0);
    keys.remove_prefix(static_cast<size_t>(n));
  }
}

bool TerminalProgram::receive() {
  pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
  if (::poll(&waiting, 1, kPatienceMs) <= 0) return false;
  char buffer[4096];
  const ssize_t n = ::read(fd_, buffer, sizeof buffer);
  if (n <= 0) return false;  // EIO: the program has gone
  pending_.append(buffer, static_cast<size_t>(n));
  return true;
}

std::string TerminalProgram::read_until(std::string_view text) {
  size_t at;
  while ((at = pending_.find(text)) == std::string::npos)
    if (!receive()) {
      ADD_FAILURE() << "no '" << text << "' in: " << pending_;
      return std::exchange(pending_, {});
    }
  std::string shown = pending_.substr(0, at + text.size());
  pending_.erase(0, at + text.size());
  return shown;
}

std::pair<std::string, int> TerminalProgram::finish() {
  while (receive()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return {std::exchange(pending_, {}), WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

}  // namespace sparrow::test
