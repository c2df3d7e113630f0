// SPDX-License-Identifier: Apache-2.0
// GpuStepLimits: the largest step of a GPU, which its buffers have room for, and how steps are computed. Free
// of CUDA: a plan counts with it.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace sparrow {

// The largest step.
struct GpuStepLimits {
  int max_step_tokens = 0;     // rows of a step, of each data-parallel group
  int max_step_sequences = 0;  // likewise
  int max_logits = 0;          // rows of logits kept at a time
  int64_t max_context = 0;
  DType kv_dtype = DType::kBF16, index_dtype = DType::kBF16;  // of the cache: bf16 or e4m3
  bool batch_invariant = false;  // a row's bits do not depend on the rest of the step; slower
  int64_t feature_tokens = 0;    // of images that are kept at a time; 0: there is no vision tower
  bool e4m3_tokens = false;      // steps of many rows round them to e4m3: lossy, on weights with folded rows
  bool nccl = false;             // ranks exchange rows over NCCL (model/exchange/exchange_way.h)

  // Below, weights take longer to come than to be multiplied.
  static constexpr int kMinRoundedRows = 2048;
  bool rounds(int rows) const { return e4m3_tokens && !batch_invariant && rows >= kMinRoundedRows; }
};

// Rows of logits that are worth keeping: a prompt's, where they are asked for, come in windows of so many.
int max_logit_rows(int max_step_tokens, int max_step_sequences);

}  // namespace sparrow
