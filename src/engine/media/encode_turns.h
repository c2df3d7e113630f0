// SPDX-License-Identifier: Apache-2.0
// EncodeTurns: hands pictures out to ranks one after another, each to the rank that has the fewest patches so
// far: everybody who asks in the same order gets the same answers. Host only, engine thread only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace sparrow {

class EncodeTurns {
 public:
  explicit EncodeTurns(int ranks) : patches_(static_cast<size_t>(ranks)) {}

  // What the rank has that is next.
  int64_t patches_of_next() const { return *std::ranges::min_element(patches_); }
  // Who encodes a picture of so many patches.
  int next(int64_t patches) {
    const auto least = std::ranges::min_element(patches_);
    *least += patches;
    return static_cast<int>(least - patches_.begin());
  }

 private:
  std::vector<int64_t> patches_;  // [ranks]
};

}  // namespace sparrow
