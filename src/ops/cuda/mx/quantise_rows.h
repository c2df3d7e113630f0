// SPDX-License-Identifier: Apache-2.0
// Rows as e4m3, for products with folded rows (fold.h). Lossy: a number keeps four digits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "ops/cuda/mx/fold.h"

namespace sparrow::ops::cuda {

struct QuantiseRowsArgs {
  const __nv_bfloat16* x = nullptr;  // [rows, columns], 16-byte aligned
  E4m3Rows out;
  int rows = 0, columns = 0;  // a multiple of 32
};
void quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
