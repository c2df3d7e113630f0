// SPDX-License-Identifier: Apache-2.0
// What a plan for Hopper decides from its config alone: whether it is computable, and how the workspace is
// laid out. Host arithmetic only: no CUDA.
#pragma once

#include <cstddef>
#include <string>

#include "msa/gpu_config.h"

namespace msa::sm90 {

inline constexpr int kMaxRotaryDim = 128;
inline constexpr int kMaxDecodeQueries = 16;

// "FIELD must be RULE, got VALUE"; and that for a value out of [low, high].
gpu::Status refuse(gpu::Code code, const std::string& field, const std::string& rule, int64_t value);
gpu::Status need_range(const std::string& field, int64_t value, int64_t low, int64_t high, gpu::Code code);

gpu::Status check_config(const gpu::PlanConfig& config);

// The decode kernel reads the blocks of each query, the prefill kernel shares them among queries.
enum class AttendKernel : uint8_t { kDecode, kPrefill };
AttendKernel choose_attend(const gpu::PlanConfig& config, const gpu::Part& part);

// Bytes that one part of a step needs of each region of the workspace.
struct Regions {
  size_t index_schedule = 0;  // one for each part: filled by prepare(), read by every layer
  size_t share_list = 0;      // likewise
  size_t index = 0;
  size_t decode = 0;  // must be zero at first; each launch leaves its counters zero
  size_t attend = 0;  // prefill kernel and dense attention, of any contents
};
Regions regions_of(const gpu::PlanConfig& config, const gpu::Part& part, int num_sms);

// Where the regions lie in a plan's workspace, large enough for every step within the config's maxima.
struct PlanLayout {
  Regions bytes;
  size_t schedules[2] = {}, share_lists[2] = {};  // offsets: of decode and prefill
  size_t index = 0, decode = 0, attend = 0, rotary = 0;
  size_t total = 0;
};
PlanLayout plan_layout(const gpu::PlanConfig& config, int num_sms);

}  // namespace msa::sm90
