// SPDX-License-Identifier: Apache-2.0
// One worker process: what it may not do, and what the kernel knows about it.
#include "media/sandbox/worker_process.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>

#include <fstream>
#include <set>
#include <string>

#include "media/sandbox/confine.h"

namespace sparrow {
namespace {

using testing::HasSubstr;

const WorkerCommand kTestWorker{.program = SPARROW_MEDIA_TEST_WORKER};
constexpr WorkerSetup kSetup{.input_capacity = 1 << 20,
                             .output_capacity = 1 << 20,
                             .memory_bytes = size_t{256} << 20,
                             .cpu_seconds = 600};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text_of(const MediaBytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<MediaBytes> answer_of(WorkerProcess& worker) {
  for (;;) {
    pollfd item{.fd = worker.socket(), .events = POLLIN, .revents = 0};
    ::poll(&item, 1, -1);
    if (auto outcome = worker.receive()) return std::move(*outcome);
  }
}

Result<MediaBytes> ask(WorkerProcess& worker, std::string_view deed, std::string_view input = "") {
  EXPECT_TRUE(worker.send(1, bytes_of(deed), bytes_of(input), kSetup.output_capacity));
  return answer_of(worker);
}

WorkerProcess started() {
  auto worker = WorkerProcess::start(kTestWorker, kSetup);
  EXPECT_TRUE(worker.ok()) << worker.error().message;
  return std::move(worker).value();
}

std::string status_line(pid_t pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  return "";
}

TEST(WorkerProcess, DoesOneJobAfterTheOther) {
  WorkerProcess worker = started();
  for (const std::string text : {"abc", "", "a longer text than before"}) {
    const auto answer = ask(worker, "reverse", text);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(text_of(answer.value()), std::string(text.rbegin(), text.rend()));
  }
  EXPECT_FALSE(worker.is_broken());
}

TEST(WorkerProcess, HasNothingOfTheServers) {
  ::setenv("SPARROW_TEST_SECRET", "key", 1);
  const int inherited = ::dup(1);  // not close-on-exec
  WorkerProcess worker = started();
  ::close(inherited);
  const auto report = ask(worker, "report");
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(text_of(report.value()), "0 1 2 3 4 environment");
}

TEST(WorkerProcess, IsKnownToTheKernelAsLockedUp) {
  WorkerProcess worker = started();
  ASSERT_TRUE(ask(worker, "reverse").ok());
  EXPECT_EQ(status_line(worker.pid(), "NoNewPrivs"), "1");
  EXPECT_EQ(status_line(worker.pid(), "Seccomp"), "2");
  EXPECT_EQ(status_line(worker.pid(), "CapEff"), "0000000000000000");
  EXPECT_EQ(status_line(worker.pid(), "CapPrm"), "0000000000000000");
  EXPECT_EQ(status_line(worker.pid(), "Threads"), "1");
}

TEST(WorkerProcess, ErrorsOfTheWorkComeBackAsPrintableText) {
  WorkerProcess worker = started();
  const auto refused = ask(worker, "refuse");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kUnsupported);
  EXPECT_EQ(refused.error().message, "no ?[31mpicture?");
  const auto thrown = ask(worker, "throw");
  ASSERT_FALSE(thrown.ok());
  EXPECT_EQ(thrown.error().message, "a library's?own words");
  EXPECT_FALSE(worker.is_broken());
  EXPECT_TRUE(ask(worker, "reverse", "still here").ok());
}

TEST(WorkerProcess, RunsOutOfItsOwnMemoryOnly) {
  if (!kConfinedStrictly) GTEST_SKIP() << "a sanitizer maps more memory than any limit would allow";
  WorkerProcess worker = started();
  const auto hog = ask(worker, "memory");
  ASSERT_FALSE(hog.ok());
  EXPECT_THAT(hog.error().message, HasSubstr("more memory"));
  const auto pages = ask(worker, "pages");
  ASSERT_TRUE(pages.ok()) << pages.error().message;
  EXPECT_LE(std::stoull(text_of(pages.value())), kSetup.memory_bytes);
}

class Forbidden : public testing::TestWithParam<const char*> {};

TEST_P(Forbidden, KillsTheWorker) {
  static const std::set<std::string> kForSanitizersToo{"socket", "connect", "execve", "ptrace",
                                                       "other numbers"};
  if (!kConfinedStrictly && !kForSanitizersToo.contains(GetParam()))
    GTEST_SKIP() << "a sanitizer makes this call itself";
  WorkerProcess worker = started();
  const auto answer = ask(worker, GetParam());
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().message, "the decoder crashed (SYS)");
  EXPECT_TRUE(worker.is_broken());
}

INSTANTIATE_TEST_SUITE_P(Calls, Forbidden,
                         testing::Values("open", "read a descriptor", "write a descriptor", "socket",
                                         "connect", "execve", "fork", "kill", "ptrace", "code", "map a file",
                                         "make code", "other numbers"));

class Broken : public testing::TestWithParam<const char*> {};

TEST_P(Broken, CostsTheJobAnError) {
  WorkerProcess worker = started();
  const auto answer = ask(worker, GetParam());
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(answer.error().message, HasSubstr("the decoder "));
  EXPECT_TRUE(worker.is_broken());
}

INSTANTIATE_TEST_SUITE_P(Deeds, Broken,
                         testing::Values("segv", "abort", "exit", "stack", "too long", "far too long",
                                         "another job", "no message", "no such error", "flood"));

// The suite again, as a user who may nothing.
TEST(WorkerProcess, NeedsNoPrivileges) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root: the other tests have shown it";
  constexpr uid_t kNobody = 65534;
  constexpr int kCannot = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    const bool changed = ::setgroups(0, nullptr) == 0 && ::setresgid(kNobody, kNobody, kNobody) == 0 &&
                         ::setresuid(kNobody, kNobody, kNobody) == 0;
    if (!changed || ::access(SPARROW_MEDIA_TEST_WORKER, X_OK) != 0) ::_exit(kCannot);
    ::execl("/proc/self/exe", "media_test", "--gtest_brief=1",
            "--gtest_filter=WorkerProcess.Does*:WorkerProcess.Is*:WorkerProcess.Has*:Calls/*:Deeds/*",
            nullptr);
    ::_exit(kCannot);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kCannot) GTEST_SKIP() << "nobody may read the programs of this build";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(WorkerProcess, ThatDoesNotExistIsAnErrorOfTheSystem) {
  const auto worker = WorkerProcess::start({.program = "/no/such/program"}, kSetup);
  ASSERT_FALSE(worker.ok());
  EXPECT_EQ(worker.error().code, Errc::kIo);
  EXPECT_THAT(worker.error().message, HasSubstr("/no/such/program"));
}

}  // namespace
}  // namespace sparrow
