// SPDX-License-Identifier: Apache-2.0
// ByteBudget: how much memory things of one kind may take together. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>

namespace sparrow {

class ByteBudget {
 public:
  explicit ByteBudget(int64_t limit) : limit_(limit) {}

  // A share of it, given back on destruction.
  class Share {
   public:
    Share() = default;
    Share(ByteBudget& budget, int64_t bytes) : budget_(&budget), bytes_(bytes) {}
    Share(Share&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (budget_) budget_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
    }

   private:
    ByteBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

  // nullopt: there is no room for it now. If nothing is taken, any share is granted, however large.
  std::optional<Share> take(int64_t bytes) {
    const int64_t before = used_.fetch_add(bytes, std::memory_order_relaxed);
    Share share(*this, bytes);
    if (bytes > 0 && before > 0 && before + bytes > limit_) return std::nullopt;
    return share;
  }

  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

}  // namespace sparrow
