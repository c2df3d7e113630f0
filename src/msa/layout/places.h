// SPDX-License-Identifier: Apache-2.0
// Places: hands out offsets of one buffer, front to back, each at a multiple of 256 bytes.
#pragma once

#include <cstddef>

namespace msa::sm90 {

inline constexpr size_t kPlaceAlignment = 256;

class Places {
 public:
  size_t operator()(size_t bytes) {
    const size_t at = end_;
    end_ += (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
    return at;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace msa::sm90
