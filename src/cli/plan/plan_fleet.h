// SPDX-License-Identifier: Apache-2.0
// `sparrow plan --slo`: which layout, and how many of it.
#pragma once

#include "base/result.h"
#include "cli/plan/plan.h"

namespace sparrow::cli {

// The exit code: 1 if no layout answers in time.
Result<int> plan_fleet(const PlanCommandOptions& options);

}  // namespace sparrow::cli
