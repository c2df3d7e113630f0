// SPDX-License-Identifier: Apache-2.0
// Runs the sparrow program as a user would.
#pragma once

#include <string>
#include <vector>

namespace sparrow::test {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out, err;
};

// `input`: what it reads from standard input, which is no terminal. `output`: a device that it prints to
// instead of `out`.
ProgramResult run_sparrow(const std::vector<std::string>& args, const std::string& input = "",
                          const std::string& output = "");

}  // namespace sparrow::test
