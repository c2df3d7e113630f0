// SPDX-License-Identifier: Apache-2.0
// Operations on rows that are sums in parts, f32 until the residual is in them: what ops/cuda/rows.h is to
// rows of bf16, with the arithmetic of exchange_norm() (comm/exchange.h). A rank that has all parts gets the
// bits that ranks get who exchange theirs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/parts/part_tree.h"

namespace sparrow::ops::cuda {

// Adds a part, whose rows stand in its slot, to those before it that it completes. `numbers` of a slot: a
// multiple of 4.
void merge_part(const PartTree& tree, int part, int64_t numbers, cudaStream_t stream);

// embed() (rows.h) as f32.
struct EmbedPartArgs {
  const int32_t* ids = nullptr;          // [rows]
  const __nv_bfloat16* table = nullptr;  // [vocab_rows, hidden]
  float* out = nullptr;                  // [rows, hidden]
  int rows = 0, hidden = 0, first_vocab_row = 0, vocab_rows = 0;
  const __nv_bfloat16* features = nullptr;  // [*, hidden]
  const int32_t* feature_rows = nullptr;    // [rows], or none
};
void embed_part(const EmbedPartArgs& args, cudaStream_t stream);

// out[i] = rms_norm(bf16(residual[r] + sums[r])), r = row_list[i]. A negative row gives zeros.
struct SumNormArgs {
  const float* sums = nullptr;              // [*, hidden]
  const __nv_bfloat16* residual = nullptr;  // [*, hidden]
  __nv_bfloat16* residual_out = nullptr;    // [*, hidden], may be residual; nullptr: not wanted
  const int32_t* row_list = nullptr;        // [rows]; nullptr: all, in their order
  const __nv_bfloat16* weight = nullptr;    // [hidden] of the norm
  __nv_bfloat16* out = nullptr;             // [rows, hidden]
  int rows = 0, hidden = 0;
  float eps = 0;
};
void sum_norm(const SumNormArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
