// SPDX-License-Identifier: Apache-2.0
#include "comm/host/life.h"

#include "base/strf.h"

namespace sparrow {

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
  left_[static_cast<size_t>(rank)].store(true, std::memory_order_release);
  any_left_.store(true, std::memory_order_release);
}

Error Life::error(int rank) const {
  if (const auto failure = this->failure())
    return {Errc::kStopped, strf("rank {}: {}", failure->rank, failure->reason)};
  return {Errc::kStopped, strf("rank {} has left", rank)};
}

Error Life::error() const {
  int rank = 0;
  while (rank + 1 < world() && !has_left(rank)) ++rank;
  return error(rank);
}

}  // namespace sparrow
