// SPDX-License-Identifier: Apache-2.0
// Operations on rows of activations: embedding, RMS norms, and the ids a step hands to the next one. Rounding
// points are those of ops/cpu/reference.cc. Every function launches one kernel that may start while its
// predecessor drains; it reads nothing but weights before that one is over.
//
// Rows are contiguous and hidden is a multiple of kColumnTile, at most kMaxHidden; rows of activations and
// weights are aligned to 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/limits.h"
#include "ops/cuda/mx/fold.h"

namespace sparrow::ops::cuda {

// out[r] = table[ids[r] - first_vocab_row], zeros where the id is outside this rank's rows: the sum over the
// ranks is the embedding. Where there are features, a row that names one of them has that instead.
struct EmbedArgs {
  const int32_t* ids;          // [rows]
  const __nv_bfloat16* table;  // [vocab_rows, hidden]
  __nv_bfloat16* out;          // [rows, hidden]
  int rows, hidden, first_vocab_row, vocab_rows;
  const __nv_bfloat16* features = nullptr;  // [*, hidden]
  const int32_t* feature_rows = nullptr;    // [rows], or none; kNoFeature: none; kOthersFeature: zeros
};
inline constexpr int32_t kNoFeature = -1, kOthersFeature = -2;
void embed(const EmbedArgs& args, cudaStream_t stream);

// out = rms_norm(x), Gemma style: (x * rsqrt(mean(x^2) + eps)) * (1 + weight). out may be x. Where rounded
// has a place for codes, out's rows go there as e4m3, and out may be nullptr.
struct RmsNormArgs {
  const __nv_bfloat16* x;       // [rows, hidden]
  const __nv_bfloat16* weight;  // [hidden]
  __nv_bfloat16* out;           // [rows, hidden]
  int rows, hidden;
  float eps;
  E4m3Rows rounded{};
};
void rms_norm(const RmsNormArgs& args, cudaStream_t stream);

// residual = residual + delta, rounded to bf16, and then out = rms_norm(residual), rounded as above. out may
// be delta.
struct AddRmsNormArgs {
  __nv_bfloat16* residual;      // [rows, hidden]
  const __nv_bfloat16* delta;   // [rows, hidden]
  const __nv_bfloat16* weight;  // [hidden]
  __nv_bfloat16* out;           // [rows, hidden]
  int rows, hidden;
  float eps;
  E4m3Rows rounded{};
};
void add_rms_norm(const AddRmsNormArgs& args, cudaStream_t stream);

// out[i] = rms_norm(bf16(residual[row] + delta[row])) with row = logit_rows[i]; residual stays as it is. A
// negative row gives zeros.
struct FinalNormArgs {
  const __nv_bfloat16* residual;  // [*, hidden]
  const __nv_bfloat16* delta;     // [*, hidden]
  const int32_t* logit_rows;      // [rows]
  const __nv_bfloat16* weight;    // [hidden]
  __nv_bfloat16* out;             // [rows, hidden]
  int rows, hidden;
  float eps;
};
void final_norm(const FinalNormArgs& args, cudaStream_t stream);

// ids[r] = sampled[source[r]] where source[r] >= 0; other ids stay as they are.
struct FeedIdsArgs {
  const int32_t* sampled;  // ids drawn by the step before
  const int32_t* source;   // [rows]
  int32_t* ids;            // [rows]
  int rows;
};
void feed_ids(const FeedIdsArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
