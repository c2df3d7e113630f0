// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>

#include "base/check.h"

namespace sparrow {
namespace {

// About 20 us: longer than the serial gaps between two regions of a decode step, short enough to leave an
// idle machine idle.
constexpr int kSpins = 4000;

template <typename Done>
void spin_then_wait(const std::atomic<uint32_t>& value, Done done) {
  for (int i = 0; i < kSpins; ++i) {
    if (done(value.load(std::memory_order_acquire))) return;
    __builtin_ia32_pause();
  }
  for (uint32_t seen = value.load(std::memory_order_acquire); !done(seen);
       seen = value.load(std::memory_order_acquire))
    value.wait(seen, std::memory_order_acquire);
}

}  // namespace

int ThreadPool::default_size() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

ThreadPool::ThreadPool(int num_threads) {
  SPARROW_CHECK_LE(1, num_threads);
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(void (*body)(void*, int), void* arg) {
  if (threads_.empty()) return body(arg, 0);
  body_ = body;
  arg_ = arg;
  pending_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  body(arg, 0);
  spin_then_wait(pending_, [](uint32_t pending) { return pending == 0; });
}

void ThreadPool::work(int worker) {
  for (uint32_t seen = 0;;) {
    spin_then_wait(epoch_, [seen](uint32_t epoch) { return epoch != seen; });
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    body_(arg_, worker);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace sparrow
