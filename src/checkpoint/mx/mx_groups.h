// SPDX-License-Identifier: Apache-2.0
// Numbers as MXFP8 and MXFP4: 32 of them round to codes that share a power of two, and expand again.
#pragma once

#include <cstdint>
#include <span>

#include "base/matrix_format.h"

namespace sparrow {

// What rounding did to some numbers.
struct RoundingError {
  double squares = 0, error_squares = 0;  // sums: of the numbers, and of what each was moved by
  double largest = 0;                     // what one was moved by at most

  void add(const RoundingError& other);
  // Root mean square of the moves, as a part of the numbers' own.
  double relative() const;
};

struct RoundedGroups {
  RoundingError error;
  // The first group with a number that is not finite, or too large for what runs the format; -1: none. From
  // there on nothing was rounded.
  int64_t refused = -1;
};

// The largest number that a group may hold.
float largest_of(MatrixFormat format);

// `values` are whole groups. The scale is the format's own rule: of MXFP8 the smallest that keeps the largest
// number in range, of MXFP4 that of AMD Quark, where numbers above 6 saturate. Codes round to nearest, ties
// to even; zero has no sign. Numbers that codes and a scale can express keep their value, so rounding again
// changes nothing. Two codes of MXFP4 share a byte, the first in its low half.
RoundedGroups round_groups(MatrixFormat format, std::span<const float> values, uint8_t* codes,
                           uint8_t* scales);

// The numbers of whole groups, exactly.
void expand_groups(MatrixFormat format, const uint8_t* codes, const uint8_t* scales, std::span<float> values);

}  // namespace sparrow
