// SPDX-License-Identifier: Apache-2.0
// The families behind moe(): few rows stream weights, many rows are sorted by expert and multiplied in tiles
// on wgmma. moe.cc picks one; a benchmark may run a family it would not pick, or some of its parts.
#pragma once

#include "ops/cuda/moe/moe.h"

namespace sparrow::ops::cuda {

enum MoePart : unsigned { kMoeRoute = 1, kMoeGateUp = 2, kMoeDown = 4, kMoeCombine = 8, kMoeAll = 15 };

// Few rows: the workspace holds the hidden rows, [rows * (top_k + 1), inter]. Routing is part of both
// products, the sum part of the second.
bool moe_few_fits(const MoeShape& shape, int rows);
int64_t moe_few_workspace_bytes(const MoeShape& shape, int rows);
void moe_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);
// A dense MLP of at most kLinearSmallRows rows.
void mlp_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);

int64_t moe_many_workspace_bytes(const MoeShape& shape, int rows);
void moe_many(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);

}  // namespace sparrow::ops::cuda
