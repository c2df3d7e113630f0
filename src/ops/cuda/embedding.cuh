// SPDX-License-Identifier: Apache-2.0
// Where the embedding of a row lies, for the kernels that copy it.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/rows.h"

namespace sparrow::ops::cuda {

// By arguments as those of embed(). nullptr: it is zeros here.
template <typename Args>
__device__ __forceinline__ const __nv_bfloat16* embedding_of(const Args& p, int row) {
  const int32_t feature = p.feature_rows == nullptr ? kNoFeature : p.feature_rows[row];
  if (feature >= 0) return p.features + int64_t{feature} * p.hidden;
  const int64_t local = int64_t{p.ids[row]} - p.first_vocab_row;
  const bool ours = feature == kNoFeature && local >= 0 && local < p.vocab_rows;
  return ours ? p.table + local * p.hidden : nullptr;
}

}  // namespace sparrow::ops::cuda
