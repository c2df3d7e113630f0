// SPDX-License-Identifier: Apache-2.0
#include "cli/ranks/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "base/strf.h"

namespace sparrow::cli {
namespace {

using Clock = std::chrono::steady_clock;

// What the others get when one has ended: rank 0 answers probes meanwhile.
constexpr std::chrono::milliseconds kGrace{2000}, kLeaderGrace{30'000};
constexpr size_t kMaxHeldBytes = 64 << 10;  // of what one rank prints

constexpr std::string_view kName = "sparrow: ";  // that lines begin with

void say(const std::string& line) {
  std::fputs(strf("{}{}\n", kName, line).c_str(), stderr);
}

struct Rank {
  RankPlace place;
  pid_t pid = -1;
  int output = -1;          // what it prints; -1: it has our own, or has closed it
  std::string held;         // of that
  std::optional<int> wait;  // its status, once it has ended
  bool killed = false;      // by us
  bool stopped = false;     // it does not run, but might again

  bool ended_by_itself() const { return wait && !killed && WIFEXITED(*wait); }
};

class Supervisor {
 public:
  Supervisor(const std::vector<RankPlace>& places, std::vector<std::string> args, std::string command)
      : args_(std::move(args)), command_(std::move(command)) {
    for (const RankPlace& place : places) ranks_.push_back({.place = place});
  }

  int run() {
    ::signal(SIGCHLD, SIG_DFL);  // who inherits that it is ignored is never told of a rank's end
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&taken, signal);
    sigprocmask(SIG_BLOCK, &taken, &mask_);
    signals_ = signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK);
    for (Rank& rank : ranks_)
      if (!start(rank)) {
        say(strf("rank {} could not be started: {}", rank.place.rank, std::strerror(errno)));
        kill_all();
        first_code_ = kExitLostRank;
        break;
      }
    while (std::ranges::any_of(ranks_, is_alive)) wait();
    for (Rank& rank : ranks_) take_output(rank);
    tell_held();
    ::close(signals_);
    return first_code_.value_or(kExitLostRank);
  }

 private:
  static bool is_alive(const Rank& rank) { return rank.pid > 0 && !rank.wait; }

  bool start(Rank& rank) {
    int pipe[2] = {-1, -1};
    const bool has_pipe = rank.place.rank != 0;
    if (has_pipe && ::pipe2(pipe, O_CLOEXEC) != 0) return false;
    const pid_t parent = ::getpid();
    rank.pid = ::fork();
    if (rank.pid == 0) {
      become(rank.place, parent, pipe[1]);
      ::_exit(kExitLostRank);
    }
    if (has_pipe) {
      ::close(pipe[1]);
      ::fcntl(pipe[0], F_SETFL, O_NONBLOCK);
      rank.output = pipe[0];
    }
    return rank.pid > 0;
  }

  // In the child: what it has beside its arguments, and then the program anew. Returns when that fails.
  void become(const RankPlace& place, pid_t parent, int output) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return;
    ::setpgid(0, 0);
    ::signal(SIGTTOU, SIG_IGN);  // it may print to the terminal of another group
    if (output >= 0) {
      const int nothing = ::open("/dev/null", O_RDONLY);
      ::dup2(nothing, STDIN_FILENO);
      ::dup2(output, STDOUT_FILENO);
      ::dup2(output, STDERR_FILENO);
    }
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
    std::vector<std::string> args = args_;
    args.insert(std::next(std::ranges::find(args, command_)),
                {"--rank", std::to_string(place.rank), "--world-size", std::to_string(place.world)});
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    ::execv("/proc/self/exe", pointers.data());
    say(strf("rank {} could not be started: {}", place.rank, std::strerror(errno)));
  }

  void wait() {
    std::vector<pollfd> files{{signals_, POLLIN, 0}};
    for (const Rank& rank : ranks_) files.push_back({rank.output, POLLIN, 0});  // poll() passes over -1
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<int64_t>(left.count(), 0));
    }
    ::poll(files.data(), files.size(), timeout);
    signalfd_siginfo info;
    while (::read(signals_, &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) forward(static_cast<int>(info.ssi_signo));
    for (Rank& rank : ranks_) take_output(rank);
    for (Rank& rank : ranks_) reap(rank);
    if (!deadline_) return;
    const bool is_over = Clock::now() >= *deadline_;
    for (Rank& rank : ranks_)
      if (is_over || rank.stopped) kill(rank);  // who is stopped has no use for more time
    if (is_over) deadline_.reset();
  }

  void take_output(Rank& rank) {
    char buffer[4096];
    while (rank.output >= 0) {
      const ssize_t size = ::read(rank.output, buffer, sizeof buffer);
      if (size < 0) return;  // nothing now
      if (size == 0) {
        ::close(std::exchange(rank.output, -1));
        return;
      }
      rank.held.append(buffer, static_cast<size_t>(size));
      if (rank.held.size() > kMaxHeldBytes) rank.held.erase(0, rank.held.size() - kMaxHeldBytes);
    }
  }

  void reap(Rank& rank) {
    int status = 0;
    while (is_alive(rank) && ::waitpid(rank.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == rank.pid) {
      rank.stopped = WIFSTOPPED(status);
      if (!WIFSTOPPED(status) && !WIFCONTINUED(status)) return ended(rank, status);
    }
  }

  void ended(Rank& rank, int status) {
    rank.wait = status;
    if (rank.killed) return;
    // Who ends by the signal that was passed on has a reason of its own, also where another rank, which
    // lost it, is gone sooner.
    const bool as_told = WIFSIGNALED(status) && WTERMSIG(status) == forwarded_;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : as_told ? 128 + forwarded_ : kExitLostRank;
    // Who has a reason of its own knows more than those who lost it.
    if (first_code_ == kExitLostRank && code != 0) first_code_ = code;
    if (first_code_.value_or(0) != 0) return;
    // The others end well because rank 0 told them to; it may be busy for a while with its own end, and what
    // it says of it counts. Where it ends for a reason of its own, nothing that they might say is of use.
    const bool is_first = rank.place.rank == 0;
    const bool has_reason = code != 0 && code != kExitLostRank;
    if (!first_code_ || code != 0)
      deadline_ = Clock::now() + (is_first && has_reason  ? std::chrono::milliseconds(0)
                                  : is_first || code != 0 ? kGrace
                                                          : kLeaderGrace);
    first_code_ = code;
    if (WIFSIGNALED(status) && !as_told)
      say(strf("rank {} was ended by signal {} ({})", rank.place.rank, WTERMSIG(status),
               ::strsignal(WTERMSIG(status))));
  }

  void kill(Rank& rank) {
    if (!is_alive(rank) || std::exchange(rank.killed, true)) return;
    ::kill(rank.pid, SIGKILL);
    if (first_code_.value_or(0) == 0) first_code_ = kExitLostRank;
  }

  void kill_all() {
    deadline_.reset();
    for (Rank& rank : ranks_) kill(rank);
  }

  // Rank 0 decides when all end. Where it is on another node, it is told there.
  void forward(int signal) {
    Rank& first = ranks_.front();
    if (first.place.rank == 0) {
      forwarded_ = signal;
      if (is_alive(first)) ::kill(first.pid, signal);
      return;
    }
    if (signal == SIGHUP) return;
    if (std::exchange(asked_to_stop_, true)) {
      first_code_ = 128 + signal;
      return kill_all();
    }
    say("waiting for rank 0, on another node, to stop; a second signal ends the ranks here at once");
  }

  // Rank 0 tells what happened to any of them. Where it could not, the others do, each line once.
  void tell_held() {
    const Rank& first = ranks_.front();
    const bool as_told = first.wait && WIFSIGNALED(*first.wait) && WTERMSIG(*first.wait) == forwarded_;
    if (first.place.rank == 0 && (first.ended_by_itself() || as_told)) return;
    std::vector<std::string> told;
    for (const Rank& rank : ranks_) {
      size_t begin = 0;
      while (begin < rank.held.size()) {
        const size_t end = std::min(rank.held.find('\n', begin), rank.held.size());
        std::string line = rank.held.substr(begin, end - begin);
        begin = end + 1;
        if (std::ranges::find(told, line) != told.end()) continue;
        const std::string_view text =
            line.starts_with(kName) ? std::string_view(line).substr(kName.size()) : line;
        say(strf("rank {}: {}", rank.place.rank, text));
        told.push_back(std::move(line));
      }
    }
  }

  const std::vector<std::string> args_;
  const std::string command_;
  std::vector<Rank> ranks_;
  sigset_t mask_{};  // before ours
  int signals_ = -1;
  int forwarded_ = 0;  // the last signal that rank 0 was sent
  bool asked_to_stop_ = false;
  std::optional<int> first_code_;              // of the rank that ended first
  std::optional<Clock::time_point> deadline_;  // for the others
};

}  // namespace

int supervise(const std::vector<RankPlace>& places, const std::vector<std::string>& args,
              const std::string& command) {
  return Supervisor(places, args, command).run();
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> args;
  for (std::string arg; std::getline(file, arg, '\0');) args.push_back(arg);
  return args;
}

}  // namespace sparrow::cli
