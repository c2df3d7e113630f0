// SPDX-License-Identifier: Apache-2.0
// What the launches of few rows agree on: where hidden rows lie, and how the second product is cut.
#pragma once

#include "base/math.h"
#include "ops/cuda/moe/moe.h"

namespace sparrow::ops::cuda {

inline __nv_bfloat16* hidden_rows(const MoeArgs& args) {
  return reinterpret_cast<__nv_bfloat16*>(static_cast<uint8_t*>(args.workspace) + kMoeBarrierBytes);
}

// Columns of a stage of the second product.
inline int down_depth(int inter, int max_depth) {
  return round_up(ceil_div(inter, ceil_div(inter, max_depth)), 64);
}

}  // namespace sparrow::ops::cuda
