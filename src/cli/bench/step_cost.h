// SPDX-License-Identifier: Apache-2.0
// StepCost: bytes and operations that a step cannot do without, part by part: every weight and every cached
// key that is needed, read once, as it lies in GPU memory. What `bench step` holds its times against. Plain
// arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/config.h"
#include "model/sharding.h"

namespace sparrow::cli {

// Requests alike, of one group: each has `context` tokens in the cache after the step, the last `queries` of
// them new. Beside them there may be a prompt of which so many tokens are new.
struct StepWork {
  int requests = 1;
  int queries = 1;
  int64_t context = 1;
  int prompt_queries = 0;
  int64_t prompt_context = 0;
  DType kv_dtype = DType::kBF16, index_dtype = DType::kBF16;
  std::span<const int> experts_hit;  // [layers] distinct routed experts of which the rank has some

  int64_t tokens() const { return int64_t{requests} * queries + prompt_queries; }
};

struct PartCost {
  std::string_view part;  // as StepTimes names it
  double bytes = 0, flops = 0;

  double floor_us(double bytes_per_us, double flops_per_us) const;
};

// One entry for each part, in the order in which they run.
std::vector<PartCost> step_cost(const ModelConfig& config, const Grid& grid, const StepWork& work);

}  // namespace sparrow::cli
