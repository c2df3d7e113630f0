// SPDX-License-Identifier: Apache-2.0
#include "base/threads/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace sparrow {
namespace {

TEST(ThreadPool, RunsTheBodyOnTheCallerAndAtMostOnceOnEveryOtherWorker) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.size(), size);
    for (int round = 0; round < 200; ++round) {
      std::vector<int> calls(size, 0);  // each worker writes its own entry only
      pool.run([&](int worker) { ++calls[worker]; });
      EXPECT_EQ(calls[0], 1);
      for (const int count : calls) EXPECT_LE(count, 1);
    }
  }
}

TEST(ThreadPool, ParallelForVisitsEveryIndexOnce) {
  ThreadPool pool(3);
  for (const int64_t count : {0, 1, 2, 3, 100, 1001}) {
    std::vector<int> visits(count, 0);
    pool.parallel_for(count, [&](int64_t i, int) { ++visits[i]; });
    EXPECT_EQ(std::accumulate(visits.begin(), visits.end(), int64_t{0}), count);
    EXPECT_EQ(std::count(visits.begin(), visits.end(), 1), count);
  }
}

TEST(ThreadPool, WritesOfARegionAreVisibleToTheNextOne) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 1);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> sums(64, 0);
    pool.parallel_for(64, [&](int64_t i, int) { sums[i] = values[(i + 1) % 64] + 1; });
    pool.parallel_for(64, [&](int64_t i, int) { values[i] = sums[i]; });
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 51));
}

// Runs body() on worker 1, which comes because worker 0 stays until it has.
template <typename Body>
void run_with_worker(ThreadPool& pool, Body body) {
  std::atomic<bool> came{false};
  pool.run([&](int worker) {
    if (worker == 0) {
      while (!came.load()) std::this_thread::yield();
    } else {
      body();
      came.store(true);
    }
  });
}

char state_of_thread(pid_t id) {
  std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
  std::string number, name;
  char state = '?';
  file >> number >> name >> state;
  return state;
}

pid_t this_thread() {
  return static_cast<pid_t>(syscall(SYS_gettid));
}

TEST(ThreadPool, WorkersThatWaitSleepAndWakeUpForTheNextRegion) {
  ThreadPool pool(2);
  pid_t worker = 0;
  for (int round = 0; round < 3; ++round) {
    run_with_worker(pool, [&] { worker = this_thread(); });
    while (state_of_thread(worker) != 'S') std::this_thread::yield();
  }
}

TEST(ThreadPool, ACallerThatWaitsForAStragglerSleeps) {
  ThreadPool pool(2);
  const pid_t caller = this_thread();
  std::atomic<bool> came{false}, slept{false};
  pool.run([&](int worker) {
    if (worker == 0) {
      while (!came.load()) std::this_thread::yield();
      return;
    }
    came.store(true);
    while (state_of_thread(caller) != 'S') std::this_thread::yield();
    slept.store(true);
  });
  EXPECT_TRUE(slept.load()) << "and the region ended after the straggler";
}

std::atomic<bool> g_held{false}, g_let_go{false};

// A signal stops the worker between two regions, as a machine does that has no core for it.
TEST(ThreadPool, NobodyWaitsForAWorkerThatGetsNoCore) {
  ThreadPool pool(2);
  pthread_t worker{};
  run_with_worker(pool, [&] { worker = pthread_self(); });
  struct sigaction hold {
  }, before{};
  hold.sa_handler = [](int) {
    g_held.store(true);
    while (!g_let_go.load()) sched_yield();
  };
  ASSERT_EQ(sigaction(SIGUSR1, &hold, &before), 0);
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!g_held.load()) std::this_thread::yield();
  std::vector<int> done_by(64);
  for (int round = 0; round < 1000; ++round) {
    std::fill(done_by.begin(), done_by.end(), -1);
    pool.parallel_for(64, [&](int64_t i, int by) { done_by[i] = by; });
    ASSERT_EQ(done_by, std::vector<int>(64, 0));
  }
  g_let_go.store(true);
  run_with_worker(pool, [] {});  // it is back
  sigaction(SIGUSR1, &before, nullptr);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Judged by processor time, which neighbours do not change: threads that share a core and spin against each
// other take ten times as much as one that does the work alone.
TEST(ThreadPool, ThreadsOnOneCoreDoNotSpinAgainstEachOther) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);  // threads inherit it
  const auto cost = [](int threads) {
    ThreadPool pool(threads);
    std::vector<double> values(16, 1.0);
    const double start = cpu_seconds();
    for (int region = 0; region < 4000; ++region)  // of about 10 us
      pool.parallel_for(16, [&](int64_t i, int) {
        for (int round = 0; round < 250; ++round) values[i] = values[i] * 1.0000001 + 1e-9;
      });
    return cpu_seconds() - start;
  };
  const double alone = cost(1), together = cost(2);
  sched_setaffinity(0, sizeof before, &before);
  EXPECT_LT(together, 4 * alone);
}

}  // namespace
}  // namespace sparrow
