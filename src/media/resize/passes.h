// SPDX-License-Identifier: Apache-2.0
// The two passes of a resize, in integers: every instruction set gives the same bits.
#pragma once

#include <cstdint>
#include <vector>

namespace sparrow {

// What each output along one axis takes from which inputs.
struct AxisWeights {
  int outputs = 0;
  int taps = 0;       // of the longest output, rounded up to 4; weights after an output's last are zero
  int precision = 0;  // weights are multiples of 2^-precision
  std::vector<int32_t> first, count;
  std::vector<int16_t> weights;  // [outputs, taps]

  const int16_t* of(int output) const { return weights.data() + int64_t{output} * taps; }
};

AxisWeights bicubic_weights(int in, int out);

// Width: rows of `in_width` pixels -> rows of `axis.outputs`. Height: `row_bytes` columns, `axis.outputs`
// rows.
struct ResizePasses {
  void (*width)(const uint8_t* in, int in_width, int rows, const AxisWeights& axis, uint8_t* out);
  void (*height)(const uint8_t* in, int64_t row_bytes, const AxisWeights& axis, uint8_t* out);
};
extern const ResizePasses kScalarPasses, kAvx2Passes;
// The fastest that this machine has.
const ResizePasses& resize_passes();

}  // namespace sparrow
