// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, for tests: each is a fork of the test that runs a function and reports one line.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "comm/world.h"

namespace sparrow {

class RankProcesses {
 public:
  // Forks `count` processes: body(rank) returns "", or what went wrong.
  RankProcesses(int count, const std::function<std::string(int)>& body);
  // Whoever is left is killed.
  ~RankProcesses();

  void signal(int rank, int number);
  // Waits for a rank's line; "killed by signal 9" where it ended without, "hangs" where it has not ended
  // after a time that no machine needs. Once for each rank.
  std::string wait(int rank);
  // The lines of all ranks that have something to say.
  std::string complaints();

 private:
  struct Process {
    pid_t pid = -1;
    int pipe = -1;
  };
  std::vector<Process> processes_;
};

// A number that all processes of a test see.
class SharedCounter {
 public:
  SharedCounter();
  ~SharedCounter();
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;

  std::atomic<int>& operator*() const { return *value_; }
  void wait_for(int at_least) const;

 private:
  std::atomic<int>* value_;
};

// Options of a rank of a test: one node, or nodes of `local_world` ranks that meet at a port of loopback.
WorldOptions test_world(const Grid& grid, int rank, int local_world = 0, int port = 0);
// A port that nobody listens on now.
int free_port();

}  // namespace sparrow
