// SPDX-License-Identifier: Apache-2.0
// Where a part's rows go, as kernels see it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/parts/part_tree.h"

namespace sparrow::ops::cuda {

struct PartPlace {
  const float* before[kMaxTreeSlots - 1] = {};  // slots that the part is added to, the nearest first
  int merges = 0;
  float* out = nullptr;  // may be the last of them
};

inline PartPlace place_of(const PartTree& tree, int part) {
  const PartStep step = part_step(part);
  PartPlace place{.merges = step.merges, .out = tree.slots[step.result()]};
  for (int m = 0; m < step.merges; ++m) place.before[m] = tree.slots[step.slot - 1 - m];
  return place;
}

// Leaves the sum of kNumbers of a part and what it completes. Nobody else touches these places.
template <int kNumbers>
__device__ __forceinline__ void add_to_tree(const PartPlace& p, int64_t at, float (&sum)[kNumbers]) {
  static_assert(kNumbers % 4 == 0);
  for (int m = 0; m < p.merges; ++m)
#pragma unroll
    for (int q = 0; q < kNumbers / 4; ++q) {
      const float4 before = reinterpret_cast<const float4*>(p.before[m] + at)[q];
      sum[4 * q] = before.x + sum[4 * q];
      sum[4 * q + 1] = before.y + sum[4 * q + 1];
      sum[4 * q + 2] = before.z + sum[4 * q + 2];
      sum[4 * q + 3] = before.w + sum[4 * q + 3];
    }
#pragma unroll
  for (int q = 0; q < kNumbers / 4; ++q)
    reinterpret_cast<float4*>(p.out + at)[q] = {sum[4 * q], sum[4 * q + 1], sum[4 * q + 2], sum[4 * q + 3]};
}

}  // namespace sparrow::ops::cuda
