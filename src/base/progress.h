// SPDX-License-Identifier: Apache-2.0
// ProgressBar: how far a long job is, on stderr. Redraws in place on a terminal; elsewhere prints one line at
// the end.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace sparrow {

// How jobs report: work done and total, on the thread that started the job.
using ProgressFn = std::function<void(uint64_t done, uint64_t total)>;

// Whether so much work in so much time gives a rate worth showing: a single item or a moment does not.
constexpr bool has_rate(double amount, double seconds) {
  return amount >= 2 && seconds >= 0.1;
}

class ProgressBar {
 public:
  enum class Unit { kBytes, kItems };

  ProgressBar(std::string label, Unit unit);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Draws at most ten times a second. One thread at a time.
  void update(uint64_t done, uint64_t total);
  // The last line: total, time and mean rate, if there is one. Without it the bar vanishes: the job failed,
  // or is not worth a line.
  void finish();

  // Valid as long as the bar.
  ProgressFn callback() {
    return [this](uint64_t done, uint64_t total) { update(done, total); };
  }

 private:
  using Clock = std::chrono::steady_clock;

  void draw(double seconds, bool last);

  std::string label_;
  Unit unit_;
  bool is_terminal_;
  bool finished_ = false;
  uint64_t done_ = 0, total_ = 0;
  Clock::time_point start_, last_draw_;
};

}  // namespace sparrow
