// SPDX-License-Identifier: Apache-2.0
// Kernels that lay rows of a tensor down in the layout of DeviceWeights, converting them on the way, or fill
// them with random numbers. Both write the same elements.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/matrix_format.h"
#include "checkpoint/random/random_bits.h"

namespace sparrow {

// Rows [first_row, first_row + num_rows) of a part: its element [r, c] is the matrix's element
// [matrix_row + r / row_run * row_run_stride + r % row_run, c / col_run * col_run_stride + c % col_run].
struct PackTarget {
  void* out;            // the matrix, 16-byte aligned
  MatrixFormat format;  // of the matrix; MXFP8 and MXFP4: cells
  int64_t columns;      // of the matrix
  int64_t matrix_row;
  int64_t row_run, row_run_stride;
  int64_t col_run, col_run_stride;
  int64_t first_row, num_rows, num_cols;
};

// Of a tensor whose groups of 32 numbers hold what may not be: NaN, or what a cell has no room for.
// The smallest `tag` + index of a group, counted row by row from the part's first, ends up in `first`.
struct PackFaults {
  unsigned long long* first = nullptr;  // on the device; starts with kNone
  uint64_t tag = 0;

  static constexpr unsigned long long kNone = ~0ull;
};

struct PackSource {
  MatrixFormat format;    // cells take their own, bf16 and f32 any
  const void* values;     // [num_rows, num_cols], 16-byte aligned
  const uint8_t* scales;  // [num_rows, num_cols / 32] e8m0, for MXFP8 and MXFP4: num_cols is a multiple of 32
  PackFaults faults;      // for these formats, too
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

// Of a matrix that is no cells.
cudaError_t launch_fill_random(const PackTarget& target, const RandomSource& source, cudaStream_t stream);

// The same of codes and their scales.
struct RandomCells {
  RandomBytes codes, scales;
  int64_t first_row, first_col, whole_cols;
};

cudaError_t launch_fill_random_cells(const PackTarget& target, const RandomCells& source,
                                     cudaStream_t stream);

}  // namespace sparrow
