// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/supervisor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

namespace sparrow::cli {
namespace {

// What the supervisor of the test below starts: rank 1 is gone at once, as one that has lost rank 0; rank 0
// waits for a signal.
TEST(SupervisorRank, DISABLED_OfTheTestBelow) {
  const std::vector<std::string> args = own_arguments();
  if (*std::next(std::ranges::find(args, "--rank")) != "0") ::_exit(kExitLostRank);
  ::usleep(200'000);
  ASSERT_EQ(::write(STDOUT_FILENO, "\nready\n", 7), 7);
  for (;;) ::pause();
}

// Rank 0 was told to end, and takes longer to be gone than the others to notice: its end is no loss.
TEST(Supervisor, ASignalIsTheReasonWhoeverIsReapedFirst) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(pipe[1], STDOUT_FILENO);
    ::_exit(supervise({{.rank = 0, .world = 2}, {.rank = 1, .world = 2}},
                      {"cli_test", "ranks", "--gtest_also_run_disabled_tests",
                       "--gtest_filter=SupervisorRank.DISABLED_OfTheTestBelow"},
                      "ranks"));
  }
  ::close(pipe[1]);
  std::string said;
  for (char c; said.find("ready") == std::string::npos && ::read(pipe[0], &c, 1) == 1;) said += c;
  EXPECT_NE(said.find("ready"), std::string::npos) << said;
  ::kill(pid, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ::close(pipe[0]);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 128 + SIGINT);
}

}  // namespace
}  // namespace sparrow::cli
