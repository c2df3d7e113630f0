// SPDX-License-Identifier: Apache-2.0
// PatchGrid: how many patches an image or a video segment has along time, height and width.
#pragma once

#include <cstdint>

namespace sparrow {

struct PatchGrid {
  int t = 1, h = 0, w = 0;
  int64_t patches() const { return int64_t{t} * h * w; }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};

}  // namespace sparrow
