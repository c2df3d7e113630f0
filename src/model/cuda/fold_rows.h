// SPDX-License-Identifier: Apache-2.0
// Rows of MXFP8, as files have them, expressed with one scale a row (ops/cuda/mx/fold.h), on their way to
// cells. Lossy.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sparrow {

struct FoldRowsParams {
  uint8_t* codes;   // [rows, columns], 16-byte aligned; columns are a multiple of 32
  uint8_t* scales;  // [rows, columns / 32]
  int64_t rows, columns;
  unsigned long long* changed;  // codes whose number is another now are added
};

// In place. Rows with what cells cannot hold stay as they are: who packs them will say so.
cudaError_t launch_fold_rows(const FoldRowsParams& p, cudaStream_t stream);

}  // namespace sparrow
