// SPDX-License-Identifier: Apache-2.0
// Kernels that lay rows of a tensor down in the layout of DeviceWeights, converting them on the way, or fill
// them with random numbers. Both write the same elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/dtype.h"
#include "checkpoint/random/random_bits.h"

namespace sparrow {

// Rows [first_row, first_row + num_rows) of a part: its element [r, c] goes to
// (r / row_run * row_run_stride + r % row_run) * row_stride + c / col_run * col_run_stride + c % col_run.
struct PackTarget {
  void* out;  // the part's first element, 16-byte aligned: bf16, or f32 where is_f32
  bool is_f32;
  int64_t row_stride;
  int64_t row_run, row_run_stride;
  int64_t col_run, col_run_stride;
  int64_t first_row, num_rows, num_cols;
};

struct PackSource {
  DType dtype;            // F32, BF16 or F8_E4M3
  const void* values;     // [num_rows, num_cols], 16-byte aligned
  const uint8_t* scales;  // [num_rows, num_cols / 32] e8m0, for F8_E4M3, whose rows are multiples of 32
};

// Narrowing rounds to nearest, ties to even; everything else is exact.
cudaError_t launch_pack(const PackTarget& target, const PackSource& source, cudaStream_t stream);

// Which numbers of which tensor: element [r, c] of the part is element
// (first_row + r) * whole_cols + first_col + c of the tensor.
struct RandomSource {
  uint64_t key;
  UniformSpread spread;
  int64_t first_row, first_col, whole_cols;
};

cudaError_t launch_fill_random(const PackTarget& target, const RandomSource& source, cudaStream_t stream);

}  // namespace sparrow
