// SPDX-License-Identifier: Apache-2.0
// The scheduler under random load, with a model that costs nothing: the cache holds one number for each
// token, a hash of all tokens up to it, and the next token is drawn from that number. A block that is lost,
// shared by mistake, copied too late or found under a wrong key makes some output differ from what its prompt
// alone gives.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "engine/schedule/scheduler.h"

namespace sparrow::test {

struct SimulationOptions {
  uint64_t seed = 1;
  int64_t num_requests = 1000;
  int num_blocks = 128;  // of a group
  SchedulerLimits limits{.max_step_tokens = 512,
                         .max_step_sequences = 64,
                         .max_model_tokens = 40'000,
                         .priority_step = std::chrono::milliseconds(2000)};
  int max_live = 200, max_arrivals = 6;  // in all; in one step
  double runs_ahead = 0.5;               // of the steps that could
  double long_outputs = 0.3;             // share of them
  int64_t long_output = 400;             // at most
  double pictures = 0;                   // share of the prompts that have some
  CacheEventSink cache_events;           // as Scheduler::tell_cache_events() takes it
  std::function<void(const Scheduler&, int64_t step)> after_step;
};

struct SimulationOutcome {
  int64_t ended = 0, cancelled = 0, expired = 0, refused = 0, steps = 0, ahead = 0, max_wait_steps = 0;
  int64_t moved = 0;  // sequences that started again in another group
  uint64_t trace = 0;
  SchedulerStats stats;
};

// Runs until all have ended. What must hold in every step, and of every output, is expected on the way.
SimulationOutcome simulate_scheduler(const SimulationOptions& options);

}  // namespace sparrow::test
