// SPDX-License-Identifier: Apache-2.0
#include "support/comm/rank_processes.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <cstdio>
#include <new>

#include "base/check.h"
#include "base/strf.h"
#include "comm/net/socket.h"

namespace sparrow {
namespace {

constexpr int kHangsMs = 240'000;

}  // namespace

RankProcesses::RankProcesses(int count, const std::function<std::string(int)>& body) {
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank) {
    int ends[2];
    SPARROW_CHECK_EQ(pipe(ends), 0);
    const pid_t pid = fork();
    SPARROW_CHECK(pid >= 0);
    if (pid == 0) {
      close(ends[0]);
      for (const Process& other : processes_) close(other.pipe);
      const std::string line = body(rank);
      (void)!write(ends[1], line.data(), line.size());
      _exit(0);
    }
    close(ends[1]);
    processes_.push_back({pid, ends[0]});
  }
}

RankProcesses::~RankProcesses() {
  for (const Process& process : processes_) {
    if (process.pid > 0) kill(process.pid, SIGKILL);
    if (process.pid > 0) waitpid(process.pid, nullptr, 0);
    if (process.pipe >= 0) close(process.pipe);
  }
}

void RankProcesses::signal(int rank, int number) {
  kill(processes_[static_cast<size_t>(rank)].pid, number);
}

std::string RankProcesses::wait(int rank) {
  Process& process = processes_[static_cast<size_t>(rank)];
  std::string line;
  char buffer[4096];
  ssize_t n = 1;
  while (n > 0) {
    pollfd item{.fd = process.pipe, .events = POLLIN, .revents = 0};
    if (poll(&item, 1, kHangsMs) == 0) {
      line = "hangs";
      kill(process.pid, SIGKILL);
      break;
    }
    n = read(process.pipe, buffer, sizeof buffer);
    if (n > 0) line.append(buffer, static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(process.pid, &status, 0);
  process.pid = -1;
  if (line.empty() && WIFSIGNALED(status)) line = strf("killed by signal {}", WTERMSIG(status));
  if (line.empty() && WIFEXITED(status) && WEXITSTATUS(status) != 0)
    line = strf("exit code {}", WEXITSTATUS(status));
  return line;
}

std::string RankProcesses::complaints() {
  std::string all;
  for (size_t r = 0; r < processes_.size(); ++r) {
    const std::string line = wait(static_cast<int>(r));
    if (!line.empty()) all += strf("rank {}: {}\n", r, line);
  }
  return all;
}

SharedCounter::SharedCounter() {
  void* const page = mmap(nullptr, sizeof *value_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  SPARROW_CHECK(page != MAP_FAILED);
  value_ = new (page) std::atomic<int>(0);
}

SharedCounter::~SharedCounter() {
  munmap(value_, sizeof *value_);
}

void SharedCounter::wait_for(int at_least) const {
  for (int ms = 0; *value_ < at_least && ms < kHangsMs; ++ms) usleep(1000);
}

WorldOptions test_world(const Grid& grid, int rank, int local_world, int port) {
  WorldOptions options;
  options.grid = grid;
  options.grid.rank = rank;
  if (local_world == 0) local_world = grid.world();
  options.place = {.rank = rank,
                   .world = grid.world(),
                   .local_rank = rank % local_world,
                   .local_world = local_world,
                   .rendezvous = port == 0 ? "" : strf("127.0.0.1:{}", port),
                   .job = strf("test-{}", getppid())};
  options.token = "a token";
  options.build = "build 1";
  options.config_digest = "digest 1";
  // A rank of a test may wait long for its turn on a busy machine.
  options.join_timeout = std::chrono::seconds(120);
  options.ping_timeout = std::chrono::seconds(60);
  return options;
}

int free_port() {
  const Result<Fd> listener = listen_tcp(0);
  return listener.ok() ? port_of(*listener.operator->()) : 0;
}

}  // namespace sparrow
