// SPDX-License-Identifier: Apache-2.0
#include "machine_clock.h"

#include <algorithm>

namespace sparrow::fuzz {
namespace {

constexpr std::chrono::milliseconds kSleep{1};

double milliseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void MachineClock::watch() {
  while (!over_) {
    const auto due = Clock::now() + kSleep;
    std::this_thread::sleep_until(due);
    late_.push_back({due, Clock::now()});
  }
}

void MachineClock::stop() {
  over_ = true;
  if (thread_.joinable()) thread_.join();
}

double MachineClock::late_ms(Clock::time_point begin, Clock::time_point end) const {
  auto at =
      std::partition_point(late_.begin(), late_.end(), [&](const Late& late) { return late.awake <= begin; });
  double sum = 0;
  for (; at != late_.end() && at->due < end; ++at)
    sum += milliseconds(std::min(at->awake, end) - std::max(at->due, begin));
  return sum;
}

std::vector<double> MachineClock::all_ms() const {
  std::vector<double> out;
  for (const Late& late : late_) out.push_back(milliseconds(late.awake - late.due));
  return out;
}

}  // namespace sparrow::fuzz
