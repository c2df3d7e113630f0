// SPDX-License-Identifier: Apache-2.0
// Rows of several ranks that have come together in this one's memory, as NCCL brings them: their sum, and
// the norm of it. The arithmetic is exchange_norm()'s (exchange.h), and so are the bits: a binary tree over
// the sources in f32, rounded once, with the residual in it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace sparrow::ops::cuda {

struct PartRowsOf {
  const void* parts = nullptr;  // [sources, rows, hidden]: bf16 or, is_f32, f32
  bool is_f32 = false;
  int sources = 1;  // 1, 2, 4 or 8
  int rows = 0, hidden = 0;
};

// sums[r] = the tree over the sources.
struct SumRowsArgs {
  PartRowsOf from;
  float* sums = nullptr;  // [rows, hidden]
};
void sum_rows(const SumRowsArgs& args, cudaStream_t stream);

// out[r] = rms_norm(bf16(residual[r] + the tree over the sources)).
struct SumRowsNormArgs {
  PartRowsOf from;
  const __nv_bfloat16* residual = nullptr;  // [rows, hidden]; nullptr: none
  __nv_bfloat16* residual_out = nullptr;    // [rows, hidden], may be residual; nullptr: not wanted
  const __nv_bfloat16* weight = nullptr;    // [hidden] of the norm
  __nv_bfloat16* out = nullptr;             // [rows, hidden]
  float eps = 0;
};
void sum_rows_norm(const SumRowsNormArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
