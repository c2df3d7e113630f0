// SPDX-License-Identifier: Apache-2.0
// What a team of threads costs and gains: thousands of short regions in a row, as a decode step has them,
// with one thread and with several. Run it alone, beside busy loops (`stress-ng --cpu 4`), and pinned to one
// core (`taskset -c 0`): several threads must not fall behind one.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/threads/thread_pool.h"

namespace {

using sparrow::ThreadPool;
using Clock = std::chrono::steady_clock;

constexpr int kItems = 16;  // of a region, as strips of a product

volatile double sink;

double spin(int64_t rounds) {
  double x = 1.0;
  for (int64_t i = 0; i < rounds; ++i) x = x * 1.0000001 + 1e-9;  // each waits for the last
  return x;
}

// Rounds that take about a microsecond: of many tries the fastest, which nobody else cut short.
int64_t rounds_per_us() {
  constexpr int64_t kRounds = 20'000;
  double best = 1e9;
  for (int i = 0; i < 50; ++i) {
    const auto start = Clock::now();
    sink = spin(kRounds);
    best = std::min(best, std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return std::max<int64_t>(1, static_cast<int64_t>(kRounds / best));
}

// Microseconds of a region of `work_us`, `gap_us` of the caller's own work after each.
double run(ThreadPool& pool, int64_t rounds, double work_us, double gap_us, int regions) {
  const auto item = static_cast<int64_t>(work_us * static_cast<double>(rounds) / kItems);
  const auto gap = static_cast<int64_t>(gap_us * static_cast<double>(rounds));
  std::vector<double> results(kItems);
  const auto start = Clock::now();
  for (int r = 0; r < regions; ++r) {
    pool.parallel_for(kItems, [&](int64_t i, int) { results[static_cast<size_t>(i)] = spin(item); });
    sink = spin(gap);
  }
  sink = results[0];
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / regions;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : ThreadPool::default_size();
  const int64_t rounds = rounds_per_us();
  ThreadPool one(1), team(threads);
  std::printf("%8s %6s %12s %10d threads %7s\n", "work us", "gap us", "1 thread", threads, "ratio");
  for (const double work : {10.0, 50.0, 200.0})
    for (const double gap : {1.0, 10.0}) {
      const int regions = static_cast<int>(100'000 / (work + gap));
      double alone = 0, together = 0;
      for (int i = 0; i < 4; ++i) {  // by turns, so that both see the same neighbours
        alone += run(one, rounds, work, gap, regions) / 4;
        together += run(team, rounds, work, gap, regions) / 4;
      }
      std::printf("%8.0f %6.0f %9.1f us %15.1f us %7.2f\n", work, gap, alone, together, together / alone);
    }
}
