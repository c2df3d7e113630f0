// SPDX-License-Identifier: Apache-2.0
// WorkQueue: what is done for requests before the engine sees them, on a few threads of its own. Keys share
// the threads by bytes, however much each of them asks for. Within a key short work goes first, but nothing
// is overtaken by more than its own size. One thread never takes long work, so that short work finds one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace sparrow {

// Which work is next. One thread at a time.
class WorkOrder {
 public:
  uint64_t push(const std::string& key, size_t bytes, std::function<void()> work);
  struct Next {
    size_t bytes;
    std::function<void()> work;
  };
  // The next one of at most `max_bytes`; nullopt: there is none.
  std::optional<Next> pop(size_t max_bytes);
  // Takes back what has been pushed and not popped. False: there is no such work any more.
  bool remove(uint64_t id);
  size_t size() const { return items_.size(); }

 private:
  // The part of one key.
  struct Lane {
    uint64_t served = 0;  // bytes
    int waiting = 0;
  };
  struct Item {
    uint64_t id;
    size_t bytes;
    uint64_t due;  // of one key's items the one with the smallest is next
    Lane* lane;
    std::function<void()> work;
  };

  std::list<Item> items_;
  std::map<std::string, Lane> lanes_;  // of every key that was seen: they are few
  uint64_t now_ = 0;                   // bytes that the lane served last had had before
  uint64_t last_id_ = 0;
};

class WorkQueue {
 public:
  // Work of more than `long_bytes` is long. At least two threads.
  WorkQueue(int threads, size_t long_bytes);
  ~WorkQueue();  // waits for what has begun; the rest is dropped
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // Any thread. `work` must not throw. `bytes` is how much it has to read.
  uint64_t post(const std::string& key, size_t bytes, std::function<void()> work);
  // Nobody wants it any more. False: it has begun, or is done.
  bool remove(uint64_t id);
  int num_waiting() const;

 private:
  void run();

  const size_t long_bytes_;
  const int max_long_;
  mutable std::mutex mutex_;
  std::condition_variable posted_;
  WorkOrder order_;
  int running_long_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The result of work on another thread. An exception (out of memory, most likely) comes back to whoever
// waits.
template <typename Work>
class Outcome {
 public:
  void run(Work& work) {
    try {
      value_.emplace(work());
    } catch (...) {
      exception_ = std::current_exception();
    }
    ready_.store(true, std::memory_order_release);
  }
  bool ready() const { return ready_.load(std::memory_order_acquire); }
  std::invoke_result_t<Work> take() {
    if (exception_) std::rethrow_exception(exception_);
    return std::move(*value_);
  }

 private:
  std::optional<std::invoke_result_t<Work>> value_;
  std::exception_ptr exception_;
  std::atomic<bool> ready_{false};
};

}  // namespace sparrow
