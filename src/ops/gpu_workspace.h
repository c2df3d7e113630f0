// SPDX-License-Identifier: Apache-2.0
// The shapes of operations on a GPU, and the device memory each needs beside its arguments: its kernels lay
// theirs out by these. Host arithmetic only: no CUDA.
#pragma once

#include <cstdint>

#include "msa/gpu_config.h"  // the attention's: msa::gpu::workspace_bytes()
#include "ops/cuda/limits.h"

namespace sparrow::ops::cuda {

// ---- router ----

inline constexpr int kMaxTopK = 16;

struct RouterShape {
  int hidden;       // a multiple of kColumnTile, <= kMaxHidden
  int num_experts;  // <= kMaxExperts
  int top_k;        // <= kMaxTopK and num_experts
};

// Above this the large product is faster, which takes about as long for few rows as for many.
inline constexpr int kRouterManyRows = 768;
// Few rows: so many columns are summed by one cluster, and each part has its own logits.
inline constexpr int kRouterPartColumns = 768;

constexpr int router_parts(int hidden) {
  return (hidden + kRouterPartColumns - 1) / kRouterPartColumns;
}

// The workspace: logits of few rows (so many floats), which are 0 between calls, and then those of many.
int64_t router_few_logits(const RouterShape& shape, int rows);

// Of the workspace, which must be zero before its first use and belongs to one stream at a time.
int64_t router_workspace_bytes(const RouterShape& shape, int max_rows);

// ---- experts ----

struct MoeShape {
  int hidden = 0;       // a multiple of kColumnTile
  int inter = 0;        // channels of one expert on this rank, a multiple of kColumnTile
  int num_experts = 0;  // routed, <= kMaxExperts; 0: a dense MLP, every row goes to the one expert there is
  int top_k = 0;        // <= kMaxExpertsPerToken and num_experts
};

// Columns that products of e4m3 rows take at a time: hidden is a multiple.
inline constexpr int kE4m3Columns = 128;

// A workspace begins with what launches leave as they found it, and it must be zero before the first: the
// word of a barrier over a grid (few rows), and a counter of work (many).
inline constexpr int64_t kMoeBarrierBytes = 256, kMoeCounterAt = 128;

// Many rows are sorted by expert; a share is a run of places of the sorted order, all of one expert.
struct Share {
  int32_t expert, first, count;
  uint32_t stored;  // runs of 16 rows of the first product's weights whose results are in memory
};
// Its most places: kernels for cells take fewer (moe/many/products.h).
inline constexpr int kMaxShareTokens = 160, kMinShareTokens = 48;

constexpr int max_moe_shares(int rows, int num_experts, int top_k) {
  return num_experts + 1 + rows * (top_k + 1) / kMinShareTokens;
}

// Where things lie in the workspace of many rows, in bytes.
struct MoeManyLayout {
  int64_t row_at, place_of, shares, num_shares, hidden, parts, bytes;

  MoeManyLayout(const MoeShape& shape, int rows);
};

// Few rows with a quantised second matrix: hidden rows lie in pieces of so many columns at most, and so many
// more are left free behind each.
inline constexpr int kHiddenPieceColumns = 512, kHiddenPieceGap = 8;

int64_t moe_few_workspace_bytes(const MoeShape& shape, int rows);
int64_t moe_many_workspace_bytes(const MoeShape& shape, int rows);
int64_t moe_workspace_bytes(const MoeShape& shape, int max_rows);

// ---- matrix products ----

inline constexpr int64_t kProductWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA advises for Hopper

}  // namespace sparrow::ops::cuda
