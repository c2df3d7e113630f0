// SPDX-License-Identifier: Apache-2.0
// Linear layers of few rows: out = x w^T with the weights streamed once, bound by the memory's bandwidth. The
// weights' first pieces are fetched while the kernel before still runs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/device_matrix.h"

namespace sparrow::ops::cuda {

inline constexpr int kLinearSmallRows = 64;

// Whether linear_small() takes a bf16 matrix of this shape: in_features is a multiple of 64, out_features
// of 8.
bool linear_small_fits(int out_features, int in_features);

// w is [out_features, in_features], x [rows, in_features], out [rows, out_features], all contiguous and
// 16-byte aligned. rows <= kLinearSmallRows. f32 sums in an order that does not change from run to run,
// rounded once. MXFP8 and MXFP4 matrices give bf16 results only.
void linear_small(const DeviceMatrix& w, const __nv_bfloat16* x, __nv_bfloat16* out, int rows,
                  cudaStream_t stream);
void linear_small(const DeviceMatrix& w, const __nv_bfloat16* x, float* out, int rows, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
