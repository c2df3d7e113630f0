// SPDX-License-Identifier: Apache-2.0
#include "server/work_queue.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"

namespace sparrow {
namespace {

// What the shortest piece of work counts for: it takes time as well.
constexpr size_t kLeastBytes = 1 << 10;

}  // namespace

uint64_t WorkOrder::push(const std::string& key, size_t bytes, std::function<void()> work) {
  Lane& lane = lanes_[key];
  // Who comes back has not saved up for the time it was away.
  if (lane.waiting++ == 0) lane.served = std::max(lane.served, now_);
  const size_t cost = std::max(bytes, kLeastBytes);
  items_.push_back(
      {.id = ++last_id_, .bytes = bytes, .due = lane.served + cost, .lane = &lane, .work = std::move(work)});
  return last_id_;
}

std::optional<WorkOrder::Next> WorkOrder::pop(size_t max_bytes) {
  const auto rank = [](const Item& item) { return std::tuple(item.lane->served, item.due, item.id); };
  auto best = items_.end();
  for (auto item = items_.begin(); item != items_.end(); ++item)
    if (item->bytes <= max_bytes && (best == items_.end() || rank(*item) < rank(*best))) best = item;
  if (best == items_.end()) return std::nullopt;
  Lane& lane = *best->lane;
  now_ = std::max(now_, lane.served);
  lane.served += std::max(best->bytes, kLeastBytes);
  --lane.waiting;
  Next next{best->bytes, std::move(best->work)};
  items_.erase(best);
  return next;
}

bool WorkOrder::remove(uint64_t id) {
  const auto item = std::find_if(items_.begin(), items_.end(), [id](const Item& i) { return i.id == id; });
  if (item == items_.end()) return false;
  --item->lane->waiting;
  items_.erase(item);
  return true;
}

WorkQueue::WorkQueue(int threads, size_t long_bytes) : long_bytes_(long_bytes), max_long_(threads - 1) {
  SPARROW_CHECK(threads >= 2);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkQueue::~WorkQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

uint64_t WorkQueue::post(const std::string& key, size_t bytes, std::function<void()> work) {
  uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = order_.push(key, bytes, std::move(work));
  }
  posted_.notify_one();
  return id;
}

bool WorkQueue::remove(uint64_t id) {
  const std::lock_guard lock(mutex_);
  return order_.remove(id);
}

int WorkQueue::num_waiting() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(order_.size());
}

void WorkQueue::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<WorkOrder::Next> next;
    posted_.wait(lock, [&] {
      if (!stopping_) next = order_.pop(running_long_ < max_long_ ? SIZE_MAX : long_bytes_);
      return stopping_ || next;
    });
    if (stopping_) return;
    const bool is_long = next->bytes > long_bytes_;
    running_long_ += is_long;
    lock.unlock();
    next->work();
    next.reset();  // what it owned goes here, and not under the lock
    lock.lock();
    running_long_ -= is_long;
  }
}

}  // namespace sparrow
