// SPDX-License-Identifier: Apache-2.0
// Drawing ids from logits on the device, with the rules and (up to the rounding of sums) the draws of the
// engine's Sampler; and log-probabilities. A cluster of CTAs works on each row; its result does not depend on
// the other rows, and repeats bit for bit. Nothing is allocated and no workspace is needed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/limits.h"
#include "ops/sample_batch.h"

namespace sparrow::ops::cuda {

struct SampleArgs {
  const float* logits;   // [*, vocabulary], rows row_stride floats apart; never written
  int64_t row_stride;    // >= vocabulary
  const void* batch;     // what SampleBatch::pack wrote, in device memory, 16-byte aligned
  int32_t* ids;          // [rows] out; -1 where the status is not kOk
  SampleStatus* status;  // [rows] out
  int rows;
  int vocabulary;     // <= kMaxVocabulary
  bool plain_greedy;  // SampleBatch::plain_greedy(); false is right for any batch
};
void sample(const SampleArgs& args, cudaStream_t stream);

// Log-probabilities under the softmax of a row of logits as the model gave them.
struct LogprobsArgs {
  const float* logits;  // [*, vocabulary], rows row_stride floats apart
  int64_t row_stride;
  const LogprobsRow* wanted;   // [rows]
  const int32_t* sampled_ids;  // SampleArgs::ids; may be null where every id is given
  float* logprob;              // [rows] out: of the id; NaN where there is none
  int32_t* rank;               // [rows] out: of the id, 1 for the most probable one; 0 where there is none
  int32_t* top_ids;            // [rows, top_stride] out: most probable first, the lower id on ties
  float* top_logprobs;  // [rows, top_stride] out; entries past num_top or the vocabulary stay unwritten
  int rows, top_stride, vocabulary;
};
void logprobs(const LogprobsArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
