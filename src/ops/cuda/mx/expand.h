// SPDX-License-Identifier: Apache-2.0
// The numbers of a quantised matrix in rows, exact, for products that read nothing else: as bf16, or as e4m3
// where rows are folded.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/device_matrix.h"
#include "ops/cuda/mx/fold.h"

namespace sparrow::ops::cuda {

// w is MXFP8 or MXFP4; out is [rows, cols], dense and row-major, 16-byte aligned.
void expand(const DeviceMatrix& w, __nv_bfloat16* out, cudaStream_t stream);

// w is MXFP8 with folded rows; out is [rows, cols], its columns in the order of tokens.
void expand(const DeviceMatrix& w, const E4m3Rows& out, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
