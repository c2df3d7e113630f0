// SPDX-License-Identifier: Apache-2.0
#include "media/sandbox/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/strf.h"

namespace sparrow {
namespace {

Error system_error(const char* what, int number) {
  return {Errc::kIo, strf("media worker, {}: {}", what, std::strerror(number))};
}

// Above all descriptors that a worker gets, so that giving it one does not close another.
Fd lifted(int fd) {
  constexpr int kLowest = 16;
  const Fd low(fd);
  return Fd(low ? ::fcntl(fd, F_DUPFD_CLOEXEC, kLowest) : -1);
}

// Without a name, and of one size for good: a worker cannot cut it while we read.
Result<Fd> shared_memory(uint64_t bytes) {
  Fd memory = lifted(::memfd_create("sparrow-media", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return system_error("memfd_create", errno);
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return system_error("ftruncate", errno);
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return system_error("seals", errno);
  return memory;
}

// What posix_spawn is told. The server has many threads: between fork and exec nothing of ours may run.
class SpawnPlan {
 public:
  SpawnPlan(int socket, int memory) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
      ::posix_spawn_file_actions_addopen(&actions_, standard, "/dev/null", O_RDWR, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, socket, kWorkerSocket);
    ::posix_spawn_file_actions_adddup2(&actions_, memory, kWorkerMemory);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_, kWorkerMemory + 1);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    // A group of its own: Ctrl-C is for the server, which first finishes what it does.
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_,
                               POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  // 0, or an error's number.
  int run(const WorkerCommand& command, pid_t& pid) const {
    std::string program = command.program;
    std::vector<std::string> arguments = command.arguments;
    std::vector<char*> argv{program.data()};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    char* environment[] = {nullptr};  // it may hold keys
    return ::posix_spawn(&pid, program.c_str(), &actions_, &attributes_, argv.data(), environment);
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// Text of a process that may be in anybody's hands: printable ASCII and not too long.
std::string printable(std::string_view text) {
  std::string shown(text);
  for (char& c : shown)
    if (c < ' ' || c > '~') c = '?';
  return shown;
}

bool is_error_code(int32_t code) {
  return code >= 0 && code <= static_cast<int32_t>(Errc::kUnsupported);
}

}  // namespace

Result<WorkerProcess> WorkerProcess::start(const WorkerCommand& command, const WorkerSetup& setup) {
  WorkerProcess worker;
  worker.setup_ = setup;
  worker.memory_file_ = SPARROW_TRY(shared_memory(setup.shared_bytes()));
  void* const memory = ::mmap(nullptr, setup.shared_bytes(), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_NORESERVE, worker.memory_file_.get(), 0);
  if (memory == MAP_FAILED) return system_error("mmap", errno);
  worker.memory_ = static_cast<std::byte*>(memory);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return system_error("socketpair", errno);
  worker.socket_ = lifted(ends[0]);
  const Fd theirs = lifted(ends[1]);
  if (!worker.socket_ || !theirs) return system_error("descriptors", errno);
  const SpawnPlan plan(theirs.get(), worker.memory_file_.get());
  if (const int failed = plan.run(command, worker.pid_)) {
    worker.pid_ = -1;
    return system_error(command.program.c_str(), failed);
  }
  // From now on a call must not wait for the process.
  ::fcntl(worker.socket_.get(), F_SETFL, O_NONBLOCK);
  if (::send(worker.socket_.get(), &setup, sizeof setup, MSG_NOSIGNAL) != sizeof setup)
    return system_error("setup", errno);
  return worker;
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept {
  *this = std::move(other);
}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  std::swap(setup_, other.setup_);
  std::swap(pid_, other.pid_);
  std::swap(socket_, other.socket_);
  std::swap(memory_file_, other.memory_file_);
  std::swap(memory_, other.memory_);
  std::swap(job_, other.job_);
  std::swap(ready_, other.ready_);
  std::swap(broken_, other.broken_);
  return *this;
}

WorkerProcess::~WorkerProcess() {
  bury();
  if (memory_) ::munmap(memory_, setup_.shared_bytes());
}

void WorkerProcess::bury() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

bool WorkerProcess::send(uint64_t id, std::span<const std::byte> options, std::span<const std::byte> input,
                         size_t max_output_bytes) {
  SPARROW_CHECK_LE(options.size() + input.size(), setup_.input_capacity);
  SPARROW_CHECK_LE(max_output_bytes, setup_.output_capacity);
  job_ = {.id = id,
          .option_bytes = options.size(),
          .input_bytes = input.size(),
          .max_output_bytes = max_output_bytes};
  std::ranges::copy(options, memory_);
  std::ranges::copy(input, memory_ + options.size());
  return ::send(socket_.get(), &job_, sizeof job_, MSG_NOSIGNAL) == sizeof job_;
}

std::optional<Result<MediaBytes>> WorkerProcess::receive() {
  union {
    WorkerHello hello;
    ReplyMessage reply;
  } message{};
  const ssize_t size = ::recv(socket_.get(), &message, sizeof message, MSG_TRUNC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (size <= 0) return Result<MediaBytes>(give_up(cause_of_death()));
  if (!ready_) {
    if (size != sizeof message.hello) return Result<MediaBytes>(give_up("said something senseless"));
    message.hello.step[sizeof message.hello.step - 1] = 0;
    if (message.hello.ready != 1)
      return Result<MediaBytes>(give_up(strf("could not be locked up ({}: {})", printable(message.hello.step),
                                             std::strerror(message.hello.error_number)),
                                        Errc::kIo));
    ready_ = true;
    return std::nullopt;
  }
  if (size != sizeof message.reply) return Result<MediaBytes>(give_up("said something senseless"));
  return take_reply(message.reply);
}

Result<MediaBytes> WorkerProcess::take_reply(const ReplyMessage& reply) {
  if (reply.id != job_.id || job_.id == 0) return give_up("answered what nobody had asked");
  const bool failed = reply.error != -1;
  if (failed && !is_error_code(reply.error)) return give_up("reported an error that does not exist");
  const uint64_t longest =
      failed ? std::min<uint64_t>(kMaxErrorText, setup_.output_capacity) : job_.max_output_bytes;
  if (reply.output_bytes > longest) return give_up("claimed more output than there can be");
  const std::byte* const output = memory_ + setup_.input_capacity;
  MediaBytes copy(output, output + reply.output_bytes);
  forget_job();
  if (!failed) return copy;
  return Error{static_cast<Errc>(reply.error),
               printable({reinterpret_cast<const char*>(copy.data()), copy.size()})};
}

// The memory goes back, and the next job of this worker finds nothing of this one.
void WorkerProcess::forget_job() {
  job_ = {};
  ::fallocate(memory_file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(setup_.shared_bytes()));
}

Error WorkerProcess::give_up(std::string why, Errc code) {
  broken_ = true;
  return {code, "the decoder " + std::move(why)};
}

std::string WorkerProcess::cause_of_death() {
  int status = 0;
  ::kill(pid_, SIGKILL);  // one that only closed its socket is not waited for
  pid_t ended;
  do ended = ::waitpid(pid_, &status, 0);
  while (ended < 0 && errno == EINTR);
  pid_ = -1;
  if (ended > 0 && WIFSIGNALED(status))
    return strf("crashed ({})",
                ::sigabbrev_np(WTERMSIG(status)) ? ::sigabbrev_np(WTERMSIG(status)) : "signal");
  return "ended by itself";
}

}  // namespace sparrow
