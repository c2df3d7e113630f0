// SPDX-License-Identifier: Apache-2.0
// Life: what this process knows of whether its instance still runs. Any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/control_link.h"

namespace sparrow {

class Life {
 public:
  explicit Life(int world) : left_(static_cast<size_t>(world)) {}

  int world() const { return static_cast<int>(left_.size()); }

  // The first failure stays; false: it was not the first.
  bool fail(int rank, const std::string& reason);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  std::optional<ControlLink::Failure> failure() const;

  // A rank said goodbye. That is no failure, but nobody should wait for it.
  void leave(int rank);
  bool said_goodbye(int rank) const;
  bool anybody_said_goodbye() const { return first_left_ != 0; }
  // It did so long enough ago: what it had sent by other ways is here, too.
  bool has_left(int rank) const;
  bool any_left() const;

  // Why a call returned without what it waited for: of that rank, or of all.
  Error error(int rank) const;
  Error error() const;

 private:
  std::atomic<bool> failed_{false};
  std::vector<std::atomic<int64_t>> left_;  // when, in ns; 0: it is here
  std::atomic<int64_t> first_left_{0};
  mutable std::mutex mutex_;
  std::optional<ControlLink::Failure> failure_;
};

}  // namespace sparrow
