// SPDX-License-Identifier: Apache-2.0
// Attention without a mask among the rows of each segment. A row's bits depend on its segment alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/vision/limits.h"
#include "ops/cuda/vision/segment_items.h"

namespace sparrow::ops::cuda {

struct AttendSegmentsArgs {
  const __nv_bfloat16* heads;  // q, k and v as TowerEnd::kHeads leaves them, of all rows
  const SegmentItem* items;    // [num_items] on the device
  __nv_bfloat16* out;          // [rows, num_heads * kTowerHeadDim]; rows of no segment stay as they are
  int rows, num_items, num_heads;
  float scale;
};
void attend_segments(const AttendSegmentsArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
