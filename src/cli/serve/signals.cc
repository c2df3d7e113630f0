// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/signals.h"

#include <cstdlib>
#include <utility>

namespace sparrow::cli {

Signals::Signals(bool with_hangup) {
  sigemptyset(&set_);
  sigaddset(&set_, SIGINT);
  sigaddset(&set_, SIGTERM);
  // Without anything to read again, a terminal that closes ends the server with it.
  if (with_hangup) sigaddset(&set_, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  thread_ = std::thread([this] { run(); });
}

Signals::~Signals() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  // It waits for this signal, which ends nothing.
  pthread_kill(thread_.native_handle(), SIGTERM);  // NOLINT(bugprone-bad-signal-to-kill-thread)
  thread_.join();
}

int Signals::wait(std::function<void()> on_hangup) {
  std::unique_lock lock(mutex_);
  on_hangup_ = std::move(on_hangup);
  if (std::exchange(hangup_pending_, false)) on_hangup_();
  received_.wait(lock, [this] { return stop_signal_ != 0; });
  return stop_signal_;
}

void Signals::run() {
  for (;;) {
    int signal = 0;
    sigwait(&set_, &signal);
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    take(signal);
  }
}

void Signals::take(int signal) {
  if (signal == SIGHUP) {
    if (stop_signal_ != 0) return;
    on_hangup_ ? on_hangup_() : void(hangup_pending_ = true);
    return;
  }
  if (!on_hangup_ || stop_signal_ != 0) std::_Exit(128 + signal);
  stop_signal_ = signal;
  received_.notify_one();
}

}  // namespace sparrow::cli
