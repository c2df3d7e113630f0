// SPDX-License-Identifier: Apache-2.0
// ServerProcess: `sparrow serve` as a child at a free port, and what the system says about it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace sparrow::load {

struct ServerFlags {
  std::filesystem::path program, model;
  std::vector<std::string> flags;
  int64_t cache_bytes = int64_t{64} << 20;  // --kv-cache-memory
  int max_files = 0;                        // hard limit of open files; 0: ours
  // One heap for all threads. Otherwise each thread that happens to allocate adds one, and a short run's
  // memory says how threads were scheduled rather than what was kept.
  bool one_heap = false;
  std::string log = "/dev/null";
};

struct Memory {
  double cache_mb = 0;  // pages of the KV cache that have been written
  double other_mb = 0;  // everything else that is not a mapped file
  double files_mb = 0;  // of mapped files: the weights
};

// What the scheduler says of a thread.
struct ThreadTime {
  double running_ms = 0;
  double waiting_ms = 0;                              // for a CPU, ready to run
  static ThreadTime read(const std::string& folder);  // "/proc/thread-self"
};

class ServerProcess {
 public:
  // Returns when it answers. Ends the program with a message if it does not start.
  explicit ServerProcess(const ServerFlags& flags);
  ~ServerProcess();  // stop()
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  int port() const { return port_; }
  bool running();
  Memory memory() const;
  // Open descriptors, what each is: "7 socket:[4711]".
  std::vector<std::string> files() const;
  int num_files() const { return static_cast<int>(files().size()); }
  // Their number once it has stopped changing: connections that we have closed take a moment to go.
  int num_files_at_rest() const;
  double cpu_seconds() const;
  std::map<int, ThreadTime> threads() const;  // by their ids
  ThreadTime thread(int id) const;

  // Values of /metrics by name, those of several label sets added up.
  std::map<std::string, double> metrics() const;
  // Sequences that run or wait, and blocks in use: 0 when all work is done.
  double work_left() const;
  // Waits until there is no work left and no connection: a request that is read late still comes to work.
  // `idle_files` were open before. Returns the seconds it took, or -1 when `patience` was not enough.
  double wait_until_idle(int idle_files, double patience = 60) const;

  void signal(int number) const;
  // Returns the exit code once there is one, 128 + signal where one killed it.
  int wait();
  int stop();  // SIGTERM, then wait()

 private:
  bool start(const ServerFlags& flags);

  pid_t pid_ = -1;
  int port_ = 0;
  int64_t cache_bytes_;
  int exit_code_ = -1;
};

}  // namespace sparrow::load
