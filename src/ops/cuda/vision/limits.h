// SPDX-License-Identifier: Apache-2.0
// The shapes that the vision tower's kernels take. Free of CUDA.
#pragma once

namespace sparrow::ops::cuda {

inline constexpr int kTowerHeadDim = 80;      // channels of a head
inline constexpr int kMaxTowerHidden = 2048;  // a row of the tower stays in a warp's registers

}  // namespace sparrow::ops::cuda
