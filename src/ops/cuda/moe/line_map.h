// SPDX-License-Identifier: Apache-2.0
// Tensor maps that bring a block of rows as lines of 64 columns: [line][row][64] in shared memory, not
// swizzled, one copy for a whole stage. Host only.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparrow::ops::cuda {

// `data` is [rows, columns], columns a multiple of 64; reads past its end give zeros.
CUtensorMap line_map(const __nv_bfloat16* data, int64_t rows, int columns, int box_rows, int box_lines);

}  // namespace sparrow::ops::cuda
