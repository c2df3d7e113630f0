// SPDX-License-Identifier: Apache-2.0
// PageLane: the pages of one layer in GPU memory, K and V or index-K. For kernels' files too.
#pragma once

#include <cstdint>

namespace sparrow {

struct PageLane {
  char* pages;         // [num_blocks, page_bytes]
  int64_t page_bytes;  // a multiple of 16
};

}  // namespace sparrow
