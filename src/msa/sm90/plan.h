// SPDX-License-Identifier: Apache-2.0
// What a plan decides on the host: whether a config and a step are computable, which kernels serve a step,
// and how the workspace is laid out. No device is needed for any of it.
#pragma once

#include "msa/gpu.h"

namespace msa::sm90 {

gpu::Status check_config(const gpu::PlanConfig& config);
gpu::Status check_step(const gpu::PlanConfig& config, const gpu::Step& step);

// The decode kernel reads the blocks of each query, the prefill kernel shares them among queries.
enum class AttendKernel : uint8_t { kDecode, kPrefill };
AttendKernel choose_attend(const gpu::PlanConfig& config, const gpu::Part& part);
// Whether in a whole sparse layer attention selects for itself, from the scores of the index.
bool selects_in_attention(const gpu::PlanConfig& config, const gpu::Part& decode);
// CTAs that share a query in the decode kernel.
int attend_splits(const gpu::PlanConfig& config, const gpu::Part& part);

// Bytes that one part of a step needs of each region of the workspace.
struct Regions {
  size_t index_schedule = 0;  // one for each part: filled by prepare(), read by every layer
  size_t index = 0;
  size_t decode = 0;  // must be zero at first; each launch leaves its counters zero
  size_t attend = 0;  // prefill kernel and dense attention, of any contents
};
Regions regions_of(const gpu::PlanConfig& config, const gpu::Part& part, int num_sms);

// Where the regions lie in a plan's workspace, large enough for every step within the config's maxima.
struct PlanLayout {
  Regions bytes;
  size_t schedules[2] = {};  // offsets: of decode and prefill
  size_t index = 0, decode = 0, attend = 0, rotary = 0;
  size_t total = 0;
};
PlanLayout plan_layout(const gpu::PlanConfig& config, int num_sms);

// The step's kernels in words, a line for each part.
std::string describe_step(const gpu::PlanConfig& config, const gpu::Step& step);

}  // namespace msa::sm90
