// SPDX-License-Identifier: Apache-2.0
// TerminalProgram: the sparrow program in a pseudo-terminal, typed at and read as a user would.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sparrow::test {

class TerminalProgram {
 public:
  // `environment`: names and values set for the program beside ours.
  explicit TerminalProgram(const std::vector<std::string>& args,
                           const std::vector<std::pair<std::string, std::string>>& environment = {});
  ~TerminalProgram();
  TerminalProgram(const TerminalProgram&) = delete;
  TerminalProgram& operator=(const TerminalProgram&) = delete;

  void type(std::string_view keys) const;
  // Everything shown up to and with `text`, from where the last call ended. Waits; fails the test (and
  // returns what came) when the program ends or a minute goes by without it.
  std::string read_until(std::string_view text);
  // Waits for the end: what was still shown, and the exit code, 128 + signal when it was killed.
  std::pair<std::string, int> finish();

 private:
  bool receive();

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string pending_;
};

}  // namespace sparrow::test
