// SPDX-License-Identifier: Apache-2.0
// DeviceMatrix: a matrix in GPU memory that knows its format. A kernel asks for the one it reads; which ones
// there are is decided where weights are placed, before any is loaded.
#pragma once

#include <cuda_bf16.h>

#include "base/matrix_format.h"
#include "device/cuda/arguments.h"

namespace sparrow::ops::cuda {

struct DeviceMatrix {
  MatrixFormat format = MatrixFormat::kBF16;
  const void* values = nullptr;  // [rows, cols], dense and row-major
  const void* scales = nullptr;  // [rows, cols / 32] E8M0 with MXFP8, none with the others
  int rows = 0, cols = 0;

  const __nv_bfloat16* bf16() const {
    Arguments("DeviceMatrix::bf16").require("format", format == MatrixFormat::kBF16, "must be bf16");
    return static_cast<const __nv_bfloat16*>(values);
  }
};

inline DeviceMatrix bf16_matrix(const void* values, int rows, int cols) {
  return {.values = values, .rows = rows, .cols = cols};
}

// There, aligned to 16 bytes, and bf16, the one format that kernels read so far.
inline void check_matrix(const Arguments& arguments, const char* name, const DeviceMatrix& matrix) {
  arguments.pointer(name, matrix.values).require(name, matrix.format == MatrixFormat::kBF16, "must be bf16");
}
// And of this shape.
inline void check_matrix(const Arguments& arguments, const char* name, const DeviceMatrix& matrix,
                         int64_t rows, int64_t cols) {
  check_matrix(arguments, name, matrix);
  arguments.require(name, matrix.rows == rows && matrix.cols == cols, "must have the shape of the product");
}

}  // namespace sparrow::ops::cuda
