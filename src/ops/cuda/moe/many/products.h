// SPDX-License-Identifier: Apache-2.0
// The two products of many rows: their arguments, and the launch of the kernels for one format of weights.
// Each format's kernels are compiled in a file of their own.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/matrix_format.h"
#include "ops/cuda/mx/fold.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

struct TileParams {
  CUtensorMap w;       // [experts * out_rows, columns], bf16 or cells, in boxes of 128 rows by 64 columns
  CUtensorMap tokens;  // [places, columns] in boxes of 16 rows by 64 columns, second product only
  const __nv_bfloat16* x = nullptr;  // [rows, columns], first product only
  const int32_t* row_at = nullptr;   // place -> row of x
  Share* shares = nullptr;
  const int32_t* num_shares = nullptr;
  __nv_bfloat16* out = nullptr;  // [places, out_columns]
  int columns = 0, out_rows = 0, out_columns = 0;
  bool next_may_start = false;  // while this kernel runs
  // Second product, if it may begin while the first one works (tile_items.cuh): the counter that CTAs draw
  // their items from, and what a share's `stored` is when its hidden rows are there.
  uint32_t* counter = nullptr;
  uint32_t all_stored = 0;
  float alpha = 0, limit = 0, beta = 0;
};

// What experts have on average: few tokens, so that bytes in flight are what counts; more; or so many that
// the second product holds them.
enum class Tokens : uint8_t { kFew, kMany, kHeld };

// Kernels for cells need registers for their operands, and take narrower tiles.
constexpr int share_tokens(MatrixFormat format, Tokens tokens) {
  if (!is_mx(format)) return kMaxShareTokens;
  if (tokens != Tokens::kFew) return 144;
  return format == MatrixFormat::kMxfp8 ? 64 : kMinShareTokens;
}

// Shares have at most share_tokens() of this format. The second product may hold up to kMaxHeldColumns.
inline constexpr int kMaxHeldColumns = 384;
template <MatrixFormat kFormat, bool kFirst>
void launch_product(const TileParams& p, Tokens tokens, int max_shares, cudaStream_t stream);

// ---- e4m3 tokens ----

// Columns of a sum on the tensor cores.
inline constexpr int kE4m3Promotion = 512;

// The first product: weights are folded rows of MXFP8, and x has a multiple of kE4m3Columns.
struct E4m3TileParams : TileParams {
  E4m3Rows rounded;  // what is read instead of x
};
// Shares have at most so many tokens.
inline constexpr int kE4m3ShareTokens = 144;
void launch_e4m3_product(const E4m3TileParams& p, int max_shares, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
