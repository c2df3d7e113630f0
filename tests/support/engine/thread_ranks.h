// SPDX-License-Identifier: Apache-2.0
// A grid of CPU ranks as threads of this process. Every call runs on all of them at once and returns when all
// are done.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "comm/thread_comm.h"
#include "engine/cpu/cpu_runner.h"
#include "support/variant.h"

namespace sparrow::test {

class ThreadRanks {
 public:
  ThreadRanks(const ModelConfig& config, const Weights& weights, int64_t cache_tokens, Grid grid)
      : grid_(grid), comms_(thread_comms(grid)) {
    for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank)
      ranks_.push_back(CpuRunner::create(config, weights, cache_tokens,
                                         {.threads = test_threads(), .isa = test_isa()}, grid,
                                         comms_[static_cast<size_t>(grid.rank)])
                           .value());
  }

  const Grid& grid() const { return grid_; }
  CpuRunner& at(int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  CpuRunner& leader(int group) { return at(group * grid_.tp); }
  RankComms& comms(int rank) { return comms_[static_cast<size_t>(rank)]; }

  // call(rank, runner)
  template <typename Call>
  void on_all(const Call& call) {
    std::vector<std::thread> threads;
    for (int rank = 1; rank < grid_.world(); ++rank)
      threads.emplace_back([&, rank] { call(rank, at(rank)); });
    call(0, at(0));
    for (std::thread& thread : threads) thread.join();
  }

 private:
  Grid grid_;
  std::vector<RankComms> comms_;
  std::vector<std::unique_ptr<CpuRunner>> ranks_;
};

}  // namespace sparrow::test
