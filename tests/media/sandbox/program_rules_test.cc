// SPDX-License-Identifier: Apache-2.0
// Foreign programs under rules: they start and read what they are given, and nothing else works.
#include "media/sandbox/program_rules.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "base/strf.h"
#include "support/temp_dir.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

constexpr int kInput = 3, kNoRules = 120, kNoProgram = 121;

struct Ended {
  int code;
  std::string output;
};

// Runs `body` in a child under the rules of a program, with what it prints caught.
Ended run_under_rules(const std::string& program, const std::function<void()>& body) {
  const ProgramRules rules(program);
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(::open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
    if (!rules.apply()) ::_exit(kNoRules);
    body();
    ::_exit(kNoProgram);
  }
  ::close(ends[1]);
  Ended ended{};
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
    ended.output.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  return ended;
}

Ended run(std::vector<std::string> arguments) {
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  char* environment[] = {nullptr};
  return run_under_rules(arguments[0], [&] { ::execve(pointers[0], pointers.data(), environment); });
}

TEST(ProgramRules, LetProgramsStartAndReadWhatTheyAreGiven) {
  EXPECT_EQ(run({"/bin/true"}).code, 0);
  const int memory = ::memfd_create("input", 0);
  ASSERT_EQ(::write(memory, "video", 5), 5);
  ::lseek(memory, 0, SEEK_SET);
  ASSERT_EQ(::dup2(memory, kInput), kInput);
  if (memory != kInput) ::close(memory);
  const Ended read = run({"/bin/cat", "/proc/self/fd/3"});
  EXPECT_EQ(read.code, 0);
  EXPECT_EQ(read.output, "video");
  ::close(kInput);
}

TEST(ProgramRules, KeepFilesOutOfReach) {
  if (!ProgramRules("/bin/true").guards_files()) GTEST_SKIP() << "this kernel has no Landlock";
  const test::TempDir dir;
  const std::string secret = (dir.path() / "secret").string(), created = (dir.path() / "new").string();
  std::ofstream(secret) << "secret";
  for (const std::string& path : {secret, std::string("/etc/passwd"), strf("/proc/{}/environ", ::getpid()),
                                  strf("/proc/{}/mem", ::getpid())}) {
    const Ended read = run({"/bin/cat", path});
    EXPECT_NE(read.code, 0) << path;
    EXPECT_EQ(read.output, "") << path;
  }
  EXPECT_NE(run({"/bin/sh", "-c", "echo x > " + created}).code, 0);
  EXPECT_FALSE(fs::exists(created));
  EXPECT_NE(run({"/bin/rm", secret}).code, 0);
  EXPECT_TRUE(fs::exists(secret));
}

TEST(ProgramRules, LetNothingReachOtherProcesses) {
  EXPECT_NE(run({"/bin/sh", "-c", strf("kill -0 {}", ::getpid())}).code, 0);
  const pid_t parent = ::getpid();
  const Ended ended = run_under_rules("/bin/true", [&] {
    const rlimit limit{.rlim_cur = 1, .rlim_max = 1};
    const auto refused = [](long result) { return result < 0 && errno == EACCES; };
    const bool all = refused(::socket(AF_INET, SOCK_STREAM, 0)) &&
                     refused(::socket(AF_UNIX, SOCK_STREAM, 0)) &&
                     refused(::ptrace(PTRACE_ATTACH, parent, 0, 0)) && refused(::kill(parent, 0)) &&
                     refused(::syscall(SYS_tgkill, parent, parent, 0)) &&
                     refused(::syscall(SYS_prlimit64, parent, RLIMIT_CORE, &limit, nullptr)) &&
                     refused(::setpriority(PRIO_PROCESS, static_cast<id_t>(parent), 10)) &&
                     ::syscall(SYS_prlimit64, 0, RLIMIT_CORE, &limit, nullptr) == 0;
    ::_exit(all ? 0 : 1);
  });
  EXPECT_EQ(ended.code, 0);
}

TEST(ProgramRules, LetFfmpegRun) {
  if (!fs::exists("/usr/bin/ffmpeg")) GTEST_SKIP() << "ffmpeg is not installed";
  const Ended made = run({"/usr/bin/ffmpeg", "-v", "error", "-f", "lavfi", "-i", "color=red:size=4x2",
                          "-frames:v", "1", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"});
  EXPECT_EQ(made.code, 0);
  EXPECT_EQ(made.output.size(), 24u);
}

}  // namespace
}  // namespace sparrow
