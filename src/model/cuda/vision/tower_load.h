// SPDX-License-Identifier: Apache-2.0
// The vision tower's weights on their way to the GPU.
#pragma once

#include <cuda_bf16.h>

#include "base/result.h"
#include "checkpoint/weights.h"
#include "config/config.h"
#include "device/cuda/memory.h"
#include "model/vision/tower_layout.h"

namespace sparrow {

// Copies all of them to their places, rounded to bf16. Blocks.
void load_tower(const ModelConfig& config, const VisionWeights& from, const TowerWeights<__nv_bfloat16>& to);
// Random ones in all of the memory. Blocks.
void fill_tower(const DeviceBuffer& memory);

}  // namespace sparrow
