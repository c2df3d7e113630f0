// SPDX-License-Identifier: Apache-2.0
// A workload through many instances on a virtual clock, and what came of it. Deterministic: the same options
// give the same numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "cli/simulate/latency.h"
#include "cli/simulate/load/workload.h"
#include "cli/simulate/router.h"
#include "engine/schedule/scheduler_types.h"
#include "engine/sim/cost_model.h"

namespace sparrow::cli {

struct FleetResult {
  std::string layout, routing, workload;
  int instances = 0, gpus = 0;  // these of all instances
  double seconds = 0;           // until the last answer ended
  int64_t requests = 0, refused = 0;
  std::string refusal;  // why, of the first one
  int64_t prompt_tokens = 0, output_tokens = 0;
  int64_t prefix_tokens_queried = 0, prefix_tokens_hit = 0, preemptions = 0, steps = 0;
  double busy = 0;       // part of the time that instances run steps
  bool complete = true;  // until the end
  LatencyHistogram first_token, token_gap, whole;

  double output_tokens_per_second() const { return ratio(static_cast<double>(output_tokens), seconds); }
  double hit_share() const {
    return ratio(static_cast<double>(prefix_tokens_hit), static_cast<double>(prefix_tokens_queried));
  }
  double gpu_hours_per_million_tokens() const {
    return ratio(gpus * seconds / 3600, static_cast<double>(output_tokens) / 1e6);
  }
  // 0 where there was nothing.
  static double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }
};

struct FleetOptions {
  CostModel cost;  // of one instance
  int instances = 1;
  Routing routing = Routing::kRoundRobin;
  int64_t cache_tokens = 0;  // of each data-parallel group; 0: as the cost model says
  SchedulerLimits limits{.max_step_tokens = 8192, .max_step_sequences = 256, .max_model_tokens = 1 << 20};
  // Asked now and then; false: that is enough. None: to the end.
  std::function<bool(const FleetResult& so_far)> go_on;
};

Result<FleetResult> simulate_fleet(const FleetWorkload& workload, const FleetOptions& options);

}  // namespace sparrow::cli
