// SPDX-License-Identifier: Apache-2.0
#include "server_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/check.h"
#include "base/strf.h"
#include "client.h"

namespace sparrow::load {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPoll{10};
constexpr std::chrono::seconds kStartTime{120};
constexpr int kStartAttempts = 3;  // another program may take the port first

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  SPARROW_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  SPARROW_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

[[noreturn]] void become_server(const ServerFlags& flags, int port) {
  std::vector<std::string> words = {flags.program,
                                    "serve",
                                    flags.model,
                                    "--port",
                                    std::to_string(port),
                                    "--served-model-name",
                                    "m3",
                                    "--kv-cache-memory",
                                    strf("{}M", flags.cache_bytes >> 20)};
  words.insert(words.end(), flags.flags.begin(), flags.flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int log = ::open(flags.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::close_range(3, ~0u, 0);  // the sockets of clients are not for the server
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (flags.max_files > 0) {
    const rlimit limit{static_cast<rlim_t>(flags.max_files), static_cast<rlim_t>(flags.max_files)};
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (flags.one_heap) ::setenv("MALLOC_ARENA_MAX", "1", 1);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

}  // namespace

ServerProcess::ServerProcess(const ServerFlags& flags) : cache_bytes_(flags.cache_bytes) {
  for (int i = 0; i < kStartAttempts; ++i)
    if (start(flags)) return;
  std::fprintf(stderr, "%s serve %s does not start; --server-log FILE shows why\n", flags.program.c_str(),
               flags.model.c_str());
  std::exit(1);
}

bool ServerProcess::start(const ServerFlags& flags) {
  port_ = free_port();
  exit_code_ = -1;
  pid_ = ::fork();
  SPARROW_CHECK(pid_ >= 0);
  if (pid_ == 0) become_server(flags, port_);
  const auto deadline = Clock::now() + kStartTime;
  while (running() && Clock::now() < deadline) {
    if (call(port_, get("/health"), kPoll).status == 200) return true;
    std::this_thread::sleep_for(kPoll);
  }
  stop();
  return false;
}

ServerProcess::~ServerProcess() {
  stop();
}

bool ServerProcess::running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == 0) return true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  pid_ = -1;
  return false;
}

void ServerProcess::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

int ServerProcess::wait() {
  while (running()) std::this_thread::sleep_for(kPoll);
  return exit_code_;
}

int ServerProcess::stop() {
  signal(SIGTERM);
  return wait();
}

Memory ServerProcess::memory() const {
  // The cache is one anonymous mapping, by far the largest.
  std::ifstream file(strf("/proc/{}/smaps", pid_));
  Memory memory;
  int64_t size_kb = 0;
  bool named = false;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string word;
    int64_t kb = 0;
    in >> word;
    if (!word.ends_with(':')) {  // "7f00-7f80 rw-p 00000000 00:00 0   name"
      std::string skipped, name;
      in >> skipped >> skipped >> skipped >> skipped >> name;
      named = !name.empty();
    } else if (word == "Size:") {
      in >> size_kb;
    } else if (word == "Anonymous:") {
      in >> kb;
      const bool is_cache = !named && size_kb * 1024 >= cache_bytes_ / 2;
      (is_cache ? memory.cache_mb : memory.other_mb) += static_cast<double>(kb) * 1024e-6;
      memory.files_mb -= static_cast<double>(kb) * 1024e-6;
    } else if (word == "Rss:") {
      in >> kb;
      memory.files_mb += static_cast<double>(kb) * 1024e-6;
    }
  }
  return memory;
}

std::vector<std::string> ServerProcess::files() const {
  std::vector<std::string> out;
  std::error_code ignored;
  for (auto entry = std::filesystem::directory_iterator(strf("/proc/{}/fd", pid_), ignored);
       entry != std::filesystem::directory_iterator(); entry.increment(ignored))
    out.push_back(strf("{} {}", entry->path().filename().string(),
                       std::filesystem::read_symlink(entry->path(), ignored).string()));
  return out;
}

int ServerProcess::num_files_at_rest() const {
  constexpr int kSameInARow = 10;
  int count = num_files();
  for (int same = 0; same < kSameInARow;) {
    std::this_thread::sleep_for(kPoll);
    const int now = num_files();
    same = now == count ? same + 1 : 0;
    count = now;
  }
  return count;
}

ThreadTime ThreadTime::read(const std::string& folder) {
  double running_ns = 0, waiting_ns = 0;
  std::ifstream(folder + "/schedstat") >> running_ns >> waiting_ns;
  return {running_ns * 1e-6, waiting_ns * 1e-6};
}

ThreadTime ServerProcess::thread(int id) const {
  return ThreadTime::read(strf("/proc/{}/task/{}", pid_, id));
}

std::map<int, ThreadTime> ServerProcess::threads() const {
  std::map<int, ThreadTime> out;
  for (const auto& entry : std::filesystem::directory_iterator(strf("/proc/{}/task", pid_))) {
    const int id = std::atoi(entry.path().filename().c_str());
    out[id] = thread(id);
  }
  return out;
}

double ServerProcess::cpu_seconds() const {
  std::ifstream file(strf("/proc/{}/stat", pid_));
  std::string line;
  std::getline(file, line);
  std::istringstream in(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) in >> skipped;  // state ... cmajflt
  double user = 0, system = 0;
  in >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::map<std::string, double> ServerProcess::metrics() const {
  std::map<std::string, double> values;
  std::istringstream in(call(port_, get("/metrics")).body);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    values[line.substr(0, line.find_first_of("{ "))] += std::strtod(&line[line.rfind(' ')], nullptr);
  }
  return values;
}

double ServerProcess::work_left() const {
  auto values = metrics();
  if (!values.contains("vllm:num_requests_running")) return 1;  // no answer
  return values["vllm:num_requests_running"] + values["vllm:num_requests_waiting"] +
         values["vllm:kv_cache_usage_perc"];
}

double ServerProcess::wait_until_idle(int idle_files, double patience) const {
  const auto start = Clock::now();
  for (;;) {
    const bool idle = num_files() <= idle_files && work_left() == 0;
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (idle) return seconds;
    if (seconds > patience) return -1;
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace sparrow::load
