// SPDX-License-Identifier: Apache-2.0
// What a plan decides on the host about a step: whether it is computable, and which kernels serve it. No
// device is needed for any of it.
#pragma once

#include "msa/gpu.h"
#include "msa/layout/plan_layout.h"

namespace msa::sm90 {

gpu::Status check_step(const gpu::PlanConfig& config, const gpu::Step& step);

// Whether in a whole sparse layer attention selects for itself, from the scores of the index.
bool selects_in_attention(const gpu::PlanConfig& config, const gpu::Part& decode);
// CTAs that share a query in the decode kernel.
int attend_splits(const gpu::PlanConfig& config, const gpu::Part& part);

// The step's kernels in words, a line for each part.
std::string describe_step(const gpu::PlanConfig& config, const gpu::Step& step);

}  // namespace msa::sm90
