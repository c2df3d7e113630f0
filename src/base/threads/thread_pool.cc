// SPDX-License-Identifier: Apache-2.0
#include "base/threads/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>

#include "base/check.h"
#include "base/threads/cpu_limits.h"

namespace sparrow {
namespace {

// state_: workers inside in the low bits, then the open flag, then the number of the region. Numbers wrap: a
// worker that sleeps through all of them misses one region, which is allowed.
constexpr uint32_t kInside = ThreadPool::kMaxThreads, kOpen = kInside + 1, kRegion = 2 * kOpen;

// Workers and the caller sleep on the same word and are woken apart.
constexpr uint32_t kWorkers = 1, kCaller = 2;

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value, uint32_t who) {
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, who);
}

void wake(const std::atomic<uint32_t>& word, uint32_t who) {
  syscall(SYS_futex, &word, FUTEX_WAKE_BITSET | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, who);
}

// Spins until done() or for that long; whether it is done.
template <typename Done>
bool spin(int64_t ns, Done done) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPauses = 8;  // between two looks at the clock: a pause takes up to 60 ns
  const auto end = Clock::now() + std::chrono::nanoseconds(ns);
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (done()) return true;
      __builtin_ia32_pause();
    }
  } while (Clock::now() < end);
  return done();
}

}  // namespace

// Gaps between the regions of a step are a few microseconds. Where spinning ends in sleep, whoever is waited
// for has no core, perhaps because of the spinning: then it is kept so short that it does not matter.
void ThreadPool::Patience::spun(bool in_time) {
  constexpr int64_t kLeastNs = 1'000, kMostNs = 40'000;
  ns_ = in_time ? std::min(2 * ns_, kMostNs) : std::max(ns_ / 2, kLeastNs);
}

ThreadPool::ThreadPool(int num_threads) {
  SPARROW_CHECK_LE(1, num_threads);
  SPARROW_CHECK_LE(num_threads, kMaxThreads);
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([this, worker] { work(worker); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  state_.fetch_add(kRegion);
  wake(state_, kWorkers);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(void (*body)(void*, int), void* arg) {
  if (threads_.empty()) return body(arg, 0);
  body_ = body;
  arg_ = arg;
  open();
  body(arg, 0);
  const uint32_t closed = state_.fetch_and(~kOpen) & ~kOpen;
  if ((closed & kInside) != 0) wait_for_stragglers(closed);
}

// Nobody is inside.
void ThreadPool::open() {
  state_.store((state_.load(std::memory_order_relaxed) & ~kInside) + kRegion + kOpen);
  // A worker counts itself before the kernel compares the word: either it is seen here or it sees the new
  // word.
  if (sleepers_.load() > 0) wake(state_, kWorkers);
}

void ThreadPool::wait_for_stragglers(uint32_t state) {
  const auto left = [&] { return ((state = state_.load()) & kInside) == 0; };
  const bool in_time = spin(caller_patience_.ns(), left);
  caller_patience_.spun(in_time);
  if (in_time) return;
  caller_sleeps_.store(true);
  while (!left()) sleep_while(state_, state, kCaller);
  caller_sleeps_.store(false);
}

// Waits for a region that is open and new, and enters it. False: stop.
bool ThreadPool::enter(uint32_t& seen, Patience& patience) {
  uint32_t state = 0;
  const auto is_new = [&] {
    state = state_.load();
    return stop_.load() || ((state & kOpen) != 0 && state / kRegion != seen);
  };
  for (;;) {
    if (!is_new()) {
      const bool in_time = spin(patience.ns(), is_new);
      patience.spun(in_time);
      if (!in_time) {
        sleepers_.fetch_add(1);
        while (!is_new()) sleep_while(state_, state, kWorkers);
        sleepers_.fetch_sub(1);
      }
    }
    if (stop_.load()) return false;
    if (state_.compare_exchange_strong(state, state + 1)) break;
  }
  seen = state / kRegion;
  return true;
}

void ThreadPool::work(int worker) {
  uint32_t seen = 0;
  Patience patience;
  while (enter(seen, patience)) {
    body_(arg_, worker);
    const uint32_t left = state_.fetch_sub(1) - 1;
    if ((left & (kInside | kOpen)) == 0 && caller_sleeps_.load()) wake(state_, kCaller);
  }
}

int ThreadPool::default_size() {
  return cpu_limits().threads();
}

}  // namespace sparrow
