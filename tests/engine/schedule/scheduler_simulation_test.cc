// SPDX-License-Identifier: Apache-2.0
// The scheduler under random load: see scheduler_simulation.h.
//
// SPARROW_SIMULATION_REQUESTS sets the number of requests of the long test.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "support/engine/scheduler_simulation.h"

namespace sparrow {
namespace {

using test::simulate_scheduler;
using test::SimulationOptions;
using test::SimulationOutcome;

int64_t long_run_requests() {
  if (const char* text = std::getenv("SPARROW_SIMULATION_REQUESTS")) return std::atoll(text);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 3000;
#else
  return 30'000;
#endif
}

// By the number of data-parallel groups.
struct SchedulerSimulation : testing::TestWithParam<int> {
  // Each group has its part of what one alone would have.
  SimulationOptions options(uint64_t seed, int64_t num_requests) const {
    SimulationOptions options{.seed = seed, .num_requests = num_requests, .num_blocks = 128 / GetParam()};
    options.limits.groups = GetParam();
    options.limits.max_step_tokens /= GetParam();
    options.limits.max_step_sequences /= GetParam();
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Groups, SchedulerSimulation, testing::Values(1, 2, 4));

// Longest wait for a first step that is still no starvation: priorities are worth 800 steps here, and the
// rest is the time that some hundred requests need.
constexpr int64_t kMaxWaitSteps = 5000;

TEST_P(SchedulerSimulation, EveryRequestEndsWithItsOwnOutputAndNoBlockIsLost) {
  const int64_t num_requests = long_run_requests() / GetParam();
  const SimulationOutcome outcome = simulate_scheduler(options(1, num_requests));
  std::fputs(
      strf("{} requests in {} steps: {} outputs ended, {} cancelled, {} expired, {} requests refused; {} "
           "preemptions, {} moved to another group, {:.0f}% of {} prompt tokens known, longest wait {} "
           "steps, trace {:016x}\n",
           num_requests, outcome.steps, outcome.ended, outcome.cancelled, outcome.expired, outcome.refused,
           outcome.stats.preemptions, outcome.moved,
           100.0 * static_cast<double>(outcome.stats.prefix_tokens_hit) /
               static_cast<double>(outcome.stats.prefix_tokens_queried),
           outcome.stats.prefix_tokens_queried, outcome.max_wait_steps, outcome.trace)
          .c_str(),
      stdout);
  EXPECT_LT(outcome.max_wait_steps, kMaxWaitSteps);
  EXPECT_GT(outcome.stats.preemptions, 0);
  EXPECT_GT(outcome.expired, 0);
  EXPECT_EQ(outcome.moved > 0, GetParam() > 1) << "who gave way starts again wherever there is room";
}

TEST_P(SchedulerSimulation, TheSameSeedGivesTheSameTrace) {
  const uint64_t first = simulate_scheduler(options(3, 1000)).trace;
  EXPECT_EQ(simulate_scheduler(options(3, 1000)).trace, first);
  EXPECT_NE(simulate_scheduler(options(4, 1000)).trace, first);
}

// With few arrivals nearly every step can be planned before the ids of the last are known.
TEST_P(SchedulerSimulation, StepsAheadEndWithTheSameOutputs) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SimulationOptions options = this->options(seed, 300);
    options.max_live = 12;
    options.max_arrivals = 1;
    options.runs_ahead = 0.9;
    options.num_blocks = seed % 2 == 0 ? 24 : 200;
    options.limits.max_step_sequences = seed % 3 == 0 ? 8 : 64;
    const SimulationOutcome outcome = simulate_scheduler(options);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    EXPECT_GT(outcome.ahead, outcome.steps / 8) << "seed " << seed;
  }
}

TEST_P(SchedulerSimulation, OutputsThatOutgrowThePoolPreemptEachOtherAndAllEnd) {
  const int64_t num_requests = std::clamp<int64_t>(long_run_requests() / 30, 100, 1000);
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SimulationOptions options = this->options(seed, num_requests);
    options.long_outputs = 0.8;
    options.num_blocks = seed % 3 == 0 ? 8 : seed % 3 == 1 ? 16 : 40;
    options.long_output = options.num_blocks * kBlockTokens / 2;
    options.limits.prefix_caching = seed % 4 != 0;
    options.limits.max_step_tokens = seed % 2 == 0 ? 64 : 1000;
    options.limits.min_chunk = seed % 5 == 0 ? 1 : 128;
    const SimulationOutcome outcome = simulate_scheduler(options);
    preemptions += outcome.stats.preemptions;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(preemptions, num_requests / 10);
}

}  // namespace
}  // namespace sparrow
