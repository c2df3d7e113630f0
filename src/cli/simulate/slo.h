// SPDX-License-Identifier: Apache-2.0
// The smallest fleet whose answers come in time, by simulation.
#pragma once

#include <limits>
#include <string>

#include "base/result.h"
#include "cli/simulate/fleet.h"

namespace sparrow::cli {

struct ServiceGoal {
  // Most seconds to the first token, and between two tokens,
  double first_token = std::numeric_limits<double>::infinity();
  double token_gap = std::numeric_limits<double>::infinity();
  double share = 0.95;  // of so many of them

  bool met_by(const FleetResult& result) const;
};

// "ttft=2s,itl=50ms", also "percentile=99".
Result<ServiceGoal> parse_goal(const std::string& text);

struct FleetSearch {
  bool found = false;
  FleetResult fleet;  // the smallest that meets the goal, of which one instance less does not; or the largest
};
// Instances of options.cost, of at most so many GPUs. Where the largest fleet does not meet the goal, no
// smaller one is taken to.
Result<FleetSearch> smallest_fleet(const FleetWorkload& workload, FleetOptions options,
                                   const ServiceGoal& goal, int max_gpus);

}  // namespace sparrow::cli
