// SPDX-License-Identifier: Apache-2.0
// Signals: what the system and the terminal tell a server, received by a thread of its own.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace sparrow::cli {

class Signals {
 public:
  // Takes SIGINT and SIGTERM, and SIGHUP if asked to, from this thread and all that it starts from now on.
  // Until wait() is called, SIGINT and SIGTERM end the program at once: nothing has begun that must be
  // finished.
  explicit Signals(bool with_hangup);
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // Waits for SIGINT or SIGTERM and gives it. Another one after that ends the program at once. Until then
  // `on_hangup` is called for every SIGHUP, also for one that came earlier, but not after this has returned.
  int wait(std::function<void()> on_hangup);

 private:
  void run();
  void take(int signal);

  sigset_t set_;
  std::mutex mutex_;
  std::condition_variable received_;
  std::function<void()> on_hangup_;  // null: not waiting yet
  bool hangup_pending_ = false, ending_ = false;
  int stop_signal_ = 0;  // the one that was received
  std::thread thread_;
};

}  // namespace sparrow::cli
