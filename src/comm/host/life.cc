// SPDX-License-Identifier: Apache-2.0
#include "comm/host/life.h"

#include <chrono>

#include "base/strf.h"

namespace sparrow {
namespace {

constexpr std::chrono::nanoseconds kUnderway = std::chrono::seconds(1);

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
bool is_long_ago(int64_t time) {
  return time != 0 && now_ns() - time > kUnderway.count();
}

}  // namespace

bool Life::fail(int rank, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_) return false;
  failure_ = ControlLink::Failure{rank, reason};
  failed_.store(true, std::memory_order_release);
  return true;
}

std::optional<ControlLink::Failure> Life::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Life::leave(int rank) {
  const int64_t now = now_ns();
  int64_t nobody = 0;
  first_left_.compare_exchange_strong(nobody, now);
  nobody = 0;
  left_[static_cast<size_t>(rank)].compare_exchange_strong(nobody, now);
}

bool Life::said_goodbye(int rank) const {
  return left_[static_cast<size_t>(rank)] != 0;
}

bool Life::has_left(int rank) const {
  return is_long_ago(left_[static_cast<size_t>(rank)]);
}

bool Life::any_left() const {
  return is_long_ago(first_left_);
}

Error Life::error(int rank) const {
  if (const auto failure = this->failure())
    return {Errc::kStopped, strf("rank {}: {}", failure->rank, failure->reason)};
  return {Errc::kStopped, strf("rank {} has left", rank)};
}

Error Life::error() const {
  int rank = 0;
  while (rank + 1 < world() && !said_goodbye(rank)) ++rank;
  return error(rank);
}

}  // namespace sparrow
