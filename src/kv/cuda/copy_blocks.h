// SPDX-License-Identifier: Apache-2.0
// A kernel that copies blocks of a paged cache, all layers of them at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kv/page_lane.h"

namespace sparrow {

inline constexpr int kMaxCopiesPerLaunch = 64;

struct CopyBlocksParams {
  const PageLane* lanes;  // [num_lanes] on the device
  int num_lanes;
  int64_t max_page_bytes;  // of any lane
  // Block from[i] is copied to block to[i]. They run at once: no block that is written may be another's
  // source or target.
  int num_copies;
  int32_t from[kMaxCopiesPerLaunch], to[kMaxCopiesPerLaunch];
};

cudaError_t launch_copy_blocks(const CopyBlocksParams& params, cudaStream_t stream);

}  // namespace sparrow
