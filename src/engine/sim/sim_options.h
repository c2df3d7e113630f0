// SPDX-License-Identifier: Apache-2.0
// What a simulated device is told. Plain data.
#pragma once

#include <cstdint>

#include "engine/sim/cost_model.h"

namespace sparrow {

struct SimOptions {
  CostModel cost;
  double output_tokens = 200;  // of an answer that nothing else ends, on average
  uint64_t seed = 0;
};

}  // namespace sparrow
