// SPDX-License-Identifier: Apache-2.0
// Linear layers of one row, as a decode step of one sequence has them: out = x w^T. All weights are held in
// registers: they are on their way there while the kernel before still runs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/device_matrix.h"

namespace sparrow::ops::cuda {

// Whether registers hold a matrix of this shape and format.
bool linear_held_fits(MatrixFormat format, int out_features, int in_features);

// Pointers are 16-byte aligned. bf16: in_features is a multiple of 8 and at most 3072; cells: the matrix
// fits. f32 sums in an order that depends on format and shape alone, rounded once.
struct LinearHeldArgs {
  DeviceMatrix w;          // [out_features, in_features]
  const __nv_bfloat16* x;  // [in_features]
  __nv_bfloat16* out;      // [out_features]
};
void linear_held(const LinearHeldArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
