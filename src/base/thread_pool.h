// SPDX-License-Identifier: Apache-2.0
// ThreadPool: a fixed team that runs one parallel region at a time. The calling thread is worker 0. Regions
// are short and follow each other closely in a decode step, so workers spin for a moment before they sleep.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sparrow {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs body(worker) once on every worker and returns when all are done. One caller at a time; not
  // re-entrant.
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

  // Hardware threads this process may use.
  static int default_size();

 private:
  void work(int worker);

  std::vector<std::thread> threads_;
  void (*body_)(void*, int) = nullptr;
  void* arg_ = nullptr;
  std::atomic<uint32_t> epoch_{0};    // one more for each region
  std::atomic<uint32_t> pending_{0};  // workers still in the region
  std::atomic<bool> stop_{false};
};

}  // namespace sparrow
