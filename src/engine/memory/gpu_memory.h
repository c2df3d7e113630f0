// SPDX-License-Identifier: Apache-2.0
// GpuMemory: what one rank allocates at its start, to the byte. Each row comes from the function that lays
// the thing out where it is allocated. Host arithmetic only: no CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "config/config.h"
#include "engine/memory/draw_layout.h"
#include "model/sharding.h"
#include "model/step_buffers.h"
#include "model/vision/tower_layout.h"
#include "model/workspace.h"

namespace sparrow {

// Set aside for what the driver keeps of captured steps; and about what it takes for a context and its
// kernels. Nobody but the driver knows these.
inline constexpr int64_t kDriverGraphBytes = int64_t{512} << 20;
inline constexpr int64_t kDriverContextBytes = int64_t{512} << 20;
// And for what NCCL takes: 278, 326 and 422 MiB a rank of 2, 4 and 8 that share an H200, where it has 8 CTAs
// and 2 channels of 12 MiB for each pair. Between GPUs it opens more of them; how many is not known here.
inline constexpr int64_t kNcclOwnBytes = int64_t{1} << 30;

struct GpuMemory {
  int64_t weight_bytes = 0;
  Workspace workspace;       // all but weights and the cache's pages
  Workspace driver;          // not ours, not exact
  int64_t pinned_bytes = 0;  // of the host, page-locked
};

// The vision tower's part of it. Nothing: there is none, or the kernels do not take it.
struct TowerMemory {
  int64_t weight_bytes = 0;
  Workspace workspace;  // and the features that are kept
  int64_t pinned_bytes = 0;
};
std::optional<TowerMemory> plan_tower(const ModelConfig& config, int64_t feature_tokens);

// Error: the model cannot be cut that way, or the kernels do not take it.
Result<GpuMemory> plan_gpu_memory(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits,
                                  int num_sms);

// Error: more than is free on the device of that name, before there is any cache.
Status check_fits(const GpuMemory& memory, int64_t free_bytes, std::string_view device);

DrawLimits draw_limits(const ModelConfig& config, const GpuStepLimits& limits);

}  // namespace sparrow
