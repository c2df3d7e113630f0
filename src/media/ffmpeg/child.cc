// SPDX-License-Identifier: Apache-2.0
#include "media/ffmpeg/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#include "base/files/fd.h"
#include "base/strf.h"
#include "media/sandbox/program_rules.h"

namespace sparrow {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kCannotLimit = 125, kCannotStart = 126;  // exit codes of a child that never was the program
constexpr size_t kMaxComplaint = 400;

// Out of the way of 0 to 3, which the child's own become.
Fd lifted(int fd) {
  const Fd low(fd);
  return Fd(fcntl(fd, F_DUPFD_CLOEXEC, 10));
}

struct Pipe {
  Fd read_end, write_end;
  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = lifted(ends[0]), write_end = lifted(ends[1]);
    return read_end.get() >= 0 && write_end.get() >= 0 && fcntl(read_end.get(), F_SETFL, O_NONBLOCK) == 0;
  }
};

// What the child needs between fork and exec, where it may not allocate.
struct Launch {
  const char* program;
  char* const* arguments;
  int input, null, output, complaints;
  rlim_t memory, seconds;
  const ProgramRules* rules;
};

bool limit(decltype(RLIMIT_AS) resource, rlim_t value) {
  const rlimit both{value, value};
  return setrlimit(resource, &both) == 0;
}

[[noreturn]] void become_program(const Launch& launch) {
  static constexpr const char* kEnvironment[] = {"PATH=/usr/bin:/bin", "LC_ALL=C", "AV_LOG_FORCE_NOCOLOR=1",
                                                 nullptr};
  const bool ready = launch.rules->apply() && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
                     dup2(launch.null, 0) == 0 && dup2(launch.output, 1) == 1 &&
                     dup2(launch.complaints, 2) == 2 && dup2(launch.input, 3) == 3 &&
                     syscall(SYS_close_range, 4, ~0u, 0) == 0 && limit(RLIMIT_AS, launch.memory) &&
                     limit(RLIMIT_CPU, launch.seconds) && limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_CORE, 0) &&
                     limit(RLIMIT_NOFILE, 64);
  if (!ready) _exit(kCannotLimit);
  execve(launch.program, launch.arguments, const_cast<char* const*>(kEnvironment));
  _exit(kCannotStart);
}

// vfork: the tables of a server's memory are not copied. Until exec the child runs in that memory, so no
// handler may run there; the program keeps its signals blocked, and SIGKILL is the one that we send.
pid_t start(const Launch& launch) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = vfork();
  if (pid == 0) become_program(launch);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return pid;
}

Error system_error(const char* what) {
  return Error{Errc::kIo, strf("{}: {}", what, std::strerror(errno))};
}

// A file in memory that holds the input.
Status write_input(Fd& fd, std::span<const std::byte> input) {
  fd = lifted(memfd_create("sparrow-media", MFD_CLOEXEC));
  if (!fd) return system_error("memfd_create");
  for (size_t done = 0; done < input.size();) {
    const ssize_t count = write(fd.get(), input.data() + done, input.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return system_error("writing a video to memory");
    done += static_cast<size_t>(count);
  }
  lseek(fd.get(), 0, SEEK_SET);
  return Ok{};
}

// Kills and collects the child wherever the caller leaves.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  ~Child() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  // How it ended; nullopt where it is still there at the deadline, or when it is stopped.
  std::optional<int> wait_until(Clock::time_point deadline, const std::stop_token& stop) {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() >= deadline || stop.stop_requested()) return std::nullopt;
      usleep(500);
    }
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
};

// What is printable of what a child said, without the addresses in its memory: "[mov @ 0x55d45101f640]".
std::string quoted(std::string_view text) {
  constexpr std::string_view kAddress = " @ 0x", kHex = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    if (text.starts_with(kAddress)) {
      text.remove_prefix(std::min(text.find_first_not_of(kHex, kAddress.size()), text.size()));
      continue;
    }
    out += text.front() >= ' ' && text.front() <= '~' ? text.front() : ' ';
    text.remove_prefix(1);
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

Error too_slow(const ChildLimits& limits) {
  return Error{Errc::kInvalidArgument,
               strf("the video takes longer than {} ms to read", limits.time.count())};
}

// Reads both pipes to their ends.
class Reader {
 public:
  Reader(Pipe& output, Pipe& complaints, const ChildLimits& limits, const TakeOutput& take)
      : output_(output),
        complaints_(complaints),
        limits_(limits),
        take_(take),
        deadline_(Clock::now() + limits.time) {}

  Status read_all() {
    bool output_open = true, complaints_open = true;
    while (output_open || complaints_open) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
      if (left <= 0 || limits_.stop.stop_requested()) return too_slow(limits_);
      pollfd polled[2] = {{output_open ? output_.read_end.get() : -1, POLLIN, 0},
                          {complaints_open ? complaints_.read_end.get() : -1, POLLIN, 0}};
      if (poll(polled, 2, static_cast<int>(std::min<int64_t>(left, 1000))) < 0 && errno != EINTR)
        return system_error("poll");
      if (polled[0].revents) output_open = SPARROW_TRY(read_output());
      if (polled[1].revents) complaints_open = read_complaints();
    }
    return Ok{};
  }
  const std::string& complaint() const { return complaint_; }
  Clock::time_point deadline() const { return deadline_; }

 private:
  Result<bool> read_output() {
    const ssize_t count = read(output_.read_end.get(), buffer_.data(), buffer_.size());
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    taken_ += static_cast<size_t>(count);
    if (taken_ > limits_.output)
      return Error{Errc::kInvalidArgument, "the video gives more frames than it said"};
    if (count > 0) SPARROW_TRY(take_(std::as_bytes(std::span(buffer_.data(), static_cast<size_t>(count)))));
    return count > 0;
  }
  bool read_complaints() {
    const ssize_t count = read(complaints_.read_end.get(), buffer_.data(), buffer_.size());
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    complaint_.append(buffer_.data(),
                      std::min(static_cast<size_t>(count), kMaxComplaint - complaint_.size()));
    return count > 0;
  }

  Pipe &output_, &complaints_;
  const ChildLimits& limits_;
  const TakeOutput& take_;
  Clock::time_point deadline_;
  std::vector<char> buffer_ = std::vector<char>(size_t{256} << 10);
  std::string complaint_;
  size_t taken_ = 0;
};

Status judge(int status, const std::string& program, const std::string& complaint) {
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return Ok{};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotLimit)
    return Error{Errc::kUnsupported,
                 strf("{} was not started: this system does not let its limits be set", program)};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotStart)
    return Error{Errc::kUnsupported, strf("{} could not be started", program)};
  // What ffmpeg says of a file with sound alone is about its options, which nobody has given.
  if (complaint.find("matches no streams") != std::string::npos)
    return Error{Errc::kCorrupt, "the file has no video stream that can be read"};
  const std::string said = quoted(complaint);
  return Error{Errc::kCorrupt, strf("the video cannot be read: {}", said.empty() ? "ffmpeg failed" : said)};
}

}  // namespace

std::optional<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos)
    return access(name.c_str(), X_OK) == 0 ? std::optional(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  std::string_view left = path ? path : "/usr/local/bin:/usr/bin:/bin";
  while (!left.empty()) {
    const std::string_view folder = left.substr(0, left.find(':'));
    left.remove_prefix(std::min(left.size(), folder.size() + 1));
    const std::string candidate = strf("{}/{}", folder, name);
    if (!folder.empty() && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return std::nullopt;
}

Status run_child(const std::vector<std::string>& arguments, std::span<const std::byte> input,
                 const ChildLimits& limits, const TakeOutput& take) {
  Fd input_fd;
  const Fd null = lifted(open("/dev/null", O_RDONLY | O_CLOEXEC));
  SPARROW_TRY(write_input(input_fd, input));
  Pipe output, complaints;
  if (!null || !output.open() || !complaints.open()) return system_error("pipes for ffmpeg");
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const ProgramRules rules(arguments[0]);
  const Launch launch{.program = arguments[0].c_str(),
                      .arguments = argv.data(),
                      .input = input_fd.get(),
                      .null = null.get(),
                      .output = output.write_end.get(),
                      .complaints = complaints.write_end.get(),
                      .memory = limits.memory,
                      .seconds = static_cast<rlim_t>(limits.time.count() / 1000 + 1),
                      .rules = &rules};
  const pid_t pid = start(launch);
  if (pid < 0) return system_error("vfork");
  Child child(pid);
  output.write_end = Fd(), complaints.write_end = Fd();
  Reader reader(output, complaints, limits, take);
  Status read = Ok{};
  {
    // Nobody has collected it yet: the number is still its own. Its pipes end with it.
    const std::stop_callback end(limits.stop, [pid] { kill(pid, SIGKILL); });
    read = reader.read_all();
  }
  const auto status = read.ok() ? child.wait_until(reader.deadline(), limits.stop) : std::nullopt;
  if (limits.stop.stop_requested()) return Error{Errc::kStopped, "the video is not wanted any more"};
  SPARROW_TRY(read);
  if (!status) return too_slow(limits);
  return judge(*status, arguments[0], reader.complaint());
}

}  // namespace sparrow
