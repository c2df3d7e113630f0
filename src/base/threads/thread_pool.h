// SPDX-License-Identifier: Apache-2.0
// ThreadPool: a fixed team that runs one parallel region at a time. The calling thread is worker 0. Regions
// are short and follow each other closely in a decode step, so workers spin for a moment before they sleep.
//
// Cores may be shared with other programs; then a worker gets one late or not at all. So nobody waits for a
// worker that has not begun: a region closes as soon as the caller finds nothing left to claim, and a worker
// that comes later finds it closed. And nobody spins for long where spinning has not helped.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace sparrow {

class ThreadPool {
 public:
  static constexpr int kMaxThreads = (1 << 12) - 1;

  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body(0) on the calling thread and body(worker) at most once on each of the others: on those that
  // come while body(0) runs. Returns when all that have begun are done. So bodies must share work by claiming
  // it, and must not count on any worker. One caller at a time; not re-entrant.
  void run(void (*body)(void* arg, int worker), void* arg);

  template <typename F>
  void run(F&& body) {
    using Body = std::remove_reference_t<F>;
    run([](void* arg, int worker) { (*static_cast<Body*>(arg))(worker); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // Runs body(i, worker) for i in [0, count); workers claim indices as they get free.
  template <typename F>
  void parallel_for(int64_t count, F&& body) {
    if (count <= 1 || size() == 1) {
      for (int64_t i = 0; i < count; ++i) body(i, 0);
      return;
    }
    std::atomic<int64_t> next{0};
    run([&](int worker) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i, worker);
    });
  }

  // Threads worth having: the least of what affinity and CPU quotas leave this process.
  static int default_size();

 private:
  // How long to spin, judged by whether it has helped.
  class Patience {
   public:
    int64_t ns() const { return ns_; }
    void spun(bool in_time);

   private:
    int64_t ns_ = 20'000;
  };

  void work(int worker);
  bool enter(uint32_t& seen, Patience& patience);
  void wait_for_stragglers(uint32_t state);
  void open();

  std::vector<std::thread> threads_;
  void (*body_)(void*, int) = nullptr;
  void* arg_ = nullptr;
  // The region: its number, whether it is open, and how many workers are inside. One word, so that entering
  // and closing cannot miss each other, and the kernel can compare it before a thread sleeps.
  std::atomic<uint32_t> state_{0};
  std::atomic<int> sleepers_{0};  // workers that sleep or are about to
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  Patience caller_patience_;
};

}  // namespace sparrow
