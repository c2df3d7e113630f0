// SPDX-License-Identifier: Apache-2.0
// DeviceMatrix: a matrix in GPU memory that knows its format. A kernel asks for the one it reads; which ones
// there are is decided where weights are placed, before any is loaded.
#pragma once

#include <cuda_bf16.h>

#include "base/matrix_format.h"
#include "device/cuda/arguments.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow::ops::cuda {

struct DeviceMatrix {
  MatrixFormat format = MatrixFormat::kBF16;
  const void* values = nullptr;  // BF16: [rows, cols], dense and row-major; MXFP8, MXFP4: cells
  int rows = 0, cols = 0;

  const __nv_bfloat16* bf16() const {
    Arguments("DeviceMatrix::bf16").require("format", format == MatrixFormat::kBF16, "must be bf16");
    return static_cast<const __nv_bfloat16*>(values);
  }
  const uint8_t* cells() const {
    Arguments("DeviceMatrix::cells").require("format", is_mx(format), "must be MXFP8 or MXFP4");
    return static_cast<const uint8_t*>(values);
  }
};

inline DeviceMatrix bf16_matrix(const void* values, int rows, int cols) {
  return {.values = values, .rows = rows, .cols = cols};
}

// There, aligned to 16 bytes, and either bf16 or whole cells.
inline void check_matrix(const Arguments& arguments, const char* name, const DeviceMatrix& matrix) {
  arguments.pointer(name, matrix.values);
  if (is_mx(matrix.format))
    arguments.multiple(name, matrix.rows, kCellRows).multiple(name, matrix.cols, kCellColumns);
  else
    arguments.require(name, matrix.format == MatrixFormat::kBF16, "must be bf16, MXFP8 or MXFP4");
}
// And of this shape.
inline void check_matrix(const Arguments& arguments, const char* name, const DeviceMatrix& matrix,
                         int64_t rows, int64_t cols) {
  check_matrix(arguments, name, matrix);
  arguments.require(name, matrix.rows == rows && matrix.cols == cols, "must have the shape of the product");
}

}  // namespace sparrow::ops::cuda
