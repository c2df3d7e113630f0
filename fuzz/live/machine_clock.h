// SPDX-License-Identifier: Apache-2.0
// MachineClock: a thread that only sleeps, and the times in which it should have been awake and was not: what
// the machine does to every program on it, a server under test included.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace sparrow::fuzz {

class MachineClock {
 public:
  using Clock = std::chrono::steady_clock;

  MachineClock() : thread_([this] { watch(); }) {}
  ~MachineClock() { stop(); }

  void stop();
  // After stop(): the milliseconds of that time in which the thread was late, and all of them.
  double late_ms(Clock::time_point begin, Clock::time_point end) const;
  std::vector<double> all_ms() const;

 private:
  struct Late {
    Clock::time_point due, awake;
  };

  void watch();

  std::atomic<bool> over_{false};
  std::vector<Late> late_;  // one after the other
  std::thread thread_;
};

}  // namespace sparrow::fuzz
