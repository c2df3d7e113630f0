// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <vector>

namespace sparrow {
namespace {

TEST(ThreadPool, RunsTheBodyOnceOnEveryWorker) {
  for (const int size : {1, 2, 3, 8}) {
    ThreadPool pool(size);
    ASSERT_EQ(pool.size(), size);
    std::vector<int> calls(size, 0);  // each worker writes its own entry only
    for (int round = 0; round < 200; ++round) pool.run([&](int worker) { ++calls[worker]; });
    EXPECT_EQ(calls, std::vector<int>(size, 200));
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

TEST(ThreadPool, SleepingWorkersWakeUpForTheNextRegion) {
  ThreadPool pool(2);
  int calls = 0;
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // far longer than workers spin
    pool.run([&](int worker) {
      if (worker == 1) ++calls;
    });
  }
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace sparrow
