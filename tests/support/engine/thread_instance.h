// SPDX-License-Identifier: Apache-2.0
// All ranks of a grid on a CPU, each a thread of this process, behind the one runner that an engine sees.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "comm/thread_comm.h"
#include "engine/cpu/cpu_runner.h"
#include "engine/ranks/follow.h"
#include "engine/ranks/leader_runner.h"

namespace sparrow::test {

class ThreadInstance {
 public:
  // What ranks hold alike is compared after every step.
  ThreadInstance(const ModelConfig& config, const Weights& weights, const EngineOptions& options)
      : comms_(thread_comms(options.grid)), links_(thread_links(options.grid.world())) {
    Grid grid = options.grid;
    for (grid.rank = 0; grid.rank < grid.world(); ++grid.rank) {
      auto runner = CpuRunner::create(config, weights, options.cache_tokens, options.cpu, grid,
                                      comms_[static_cast<size_t>(grid.rank)])
                        .value();
      if (grid.rank == 0) {
        leader_ = std::make_unique<LeaderRunner>(
            std::move(runner), *links_[0], grid,
            LeaderOptions{.vocab_size = config.vocab_size, .compare_every = 1});
        continue;
      }
      const CallLimits limits = call_limits(config, runner->info(), options);
      threads_.emplace_back(
          [grid, limits, &link = *links_[static_cast<size_t>(grid.rank)], own = std::move(runner)] {
            const Status ended = follow(*own, link, grid, limits);
            EXPECT_TRUE(ended.ok()) << "rank " << grid.rank << ": " << ended.error().message;
          });
    }
  }
  // After the runner that it gave away.
  ~ThreadInstance() {
    leader_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  std::unique_ptr<ModelRunner> take_runner() { return std::move(leader_); }

 private:
  std::vector<RankComms> comms_;
  std::vector<std::unique_ptr<ControlLink>> links_;
  std::unique_ptr<LeaderRunner> leader_;
  std::vector<std::thread> threads_;
};

}  // namespace sparrow::test
