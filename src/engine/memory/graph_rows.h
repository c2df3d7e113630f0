// SPDX-License-Identifier: Apache-2.0
// The sizes of the graphs that replay decode steps on a GPU. Plain arithmetic.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace sparrow {

// A decode step runs in the smallest graph that holds it. Padding rows cost little, but not nothing: steps of
// about an eighth.
inline constexpr std::array kGraphRows = {1,   2,   3,   4,   5,   6,   7,   8,   10,  12, 14,
                                          16,  20,  24,  28,  32,  40,  48,  56,  64,  80, 96,
                                          112, 128, 160, 192, 224, 256, 320, 384, 448, 512};

// Rows of the graph for so many; beyond the largest, as many.
inline int64_t graph_rows(int64_t rows) {
  const auto found = std::lower_bound(kGraphRows.begin(), kGraphRows.end(), rows);
  return found == kGraphRows.end() ? rows : *found;
}

}  // namespace sparrow
