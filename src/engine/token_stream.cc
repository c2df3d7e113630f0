// SPDX-License-Identifier: Apache-2.0
#include "engine/token_stream.h"

#include <utility>

#include "base/check.h"

namespace sparrow {

TokenChannel::TokenChannel(int num_outputs, size_t events_per_output, std::function<void()> attention)
    : num_outputs_(num_outputs),
      capacity_(events_per_output * static_cast<size_t>(num_outputs)),
      attention_(std::move(attention)),
      ended_(static_cast<size_t>(num_outputs)),
      outputs_left_(num_outputs) {
  SPARROW_CHECK_LT(size_t{0}, events_per_output);
}

void TokenChannel::push(TokenEvent event) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    if (events_.empty()) wake = wake_;
    if (event.finish) ended_[static_cast<size_t>(event.output)] = true;
    events_.push_back(std::move(event));
  }
  ready_.notify_one();
  if (wake) wake();
}

void TokenChannel::fail(const std::string& error) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(failed_, true)) return;
    if (events_.empty()) wake = wake_;
    for (int output = 0; output < num_outputs_; ++output)
      if (!ended_[static_cast<size_t>(output)])
        events_.push_back({.output = output, .finish = FinishReason::kError, .error = error});
  }
  ready_.notify_one();
  if (wake) wake();
}

bool TokenChannel::has_room() {
  const std::lock_guard lock(mutex_);
  if (events_.size() + static_cast<size_t>(num_outputs_) <= capacity_) return true;
  paused_ = true;
  return false;
}

bool TokenChannel::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

std::vector<int> TokenChannel::take_cancelled_outputs() {
  const std::lock_guard lock(mutex_);
  return std::exchange(cancelled_outputs_, {});
}

std::optional<TokenEvent> TokenChannel::take(std::unique_lock<std::mutex>& lock) {
  if (events_.empty()) return std::nullopt;
  TokenEvent event = std::move(events_.front());
  events_.pop_front();
  if (event.finish) --outputs_left_;
  // Half empty, so that engine and reader do not hand every single event over with a wake-up each.
  const bool resume = paused_ && events_.size() <= capacity_ / 2;
  if (resume) paused_ = false;
  lock.unlock();
  if (resume) attention_();
  return event;
}

std::optional<TokenEvent> TokenChannel::next(std::optional<std::chrono::steady_clock::time_point> deadline) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return !events_.empty() || outputs_left_ == 0; };
  if (deadline)
    ready_.wait_until(lock, *deadline, ready);
  else
    ready_.wait(lock, ready);
  return take(lock);
}

std::optional<TokenEvent> TokenChannel::try_next() {
  std::unique_lock lock(mutex_);
  return take(lock);
}

bool TokenChannel::done() const {
  const std::lock_guard lock(mutex_);
  return outputs_left_ == 0;
}

void TokenChannel::set_wake(const std::function<void()>& wake) {
  bool now = false;
  {
    const std::lock_guard lock(mutex_);
    wake_ = wake;
    now = !events_.empty();
  }
  if (now && wake) wake();
}

void TokenChannel::cancel() {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || outputs_left_ == 0) return;
    cancelled_ = true;
  }
  attention_();
}

void TokenChannel::cancel(int output) {
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || outputs_left_ == 0) return;
    cancelled_outputs_.push_back(output);
  }
  attention_();
}

}  // namespace sparrow
