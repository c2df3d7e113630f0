// SPDX-License-Identifier: Apache-2.0
#include "support/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "support/temp_dir.h"

namespace sparrow::test {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

ProgramResult run_sparrow(const std::vector<std::string>& args, const std::string& input,
                          const std::string& output) {
  const TempDir dir;
  std::ofstream(dir.path() / "in", std::ios::binary) << input;
  std::string command = SPARROW_BINARY;
  for (const std::string& arg : args) command += " " + quoted(arg);
  command += " >" + quoted(output.empty() ? std::string(dir.path() / "out") : output) + " 2>" +
             quoted(dir.path() / "err") + " <" + quoted(dir.path() / "in");
  const int status = std::system(command.c_str());
  return {.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = slurp(dir.path() / "out"),
          .err = slurp(dir.path() / "err")};
}

}  // namespace sparrow::test
