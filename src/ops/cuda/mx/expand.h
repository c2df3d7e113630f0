// SPDX-License-Identifier: Apache-2.0
// The numbers of a quantised matrix as bf16, exact: for products that read nothing else.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/device_matrix.h"

namespace sparrow::ops::cuda {

// w is MXFP8 or MXFP4; out is [rows, cols], dense and row-major, 16-byte aligned.
void expand(const DeviceMatrix& w, __nv_bfloat16* out, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
