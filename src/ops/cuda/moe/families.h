// SPDX-License-Identifier: Apache-2.0
// The families behind moe(): few rows stream weights, many rows are sorted by expert and multiplied in tiles
// on wgmma. moe.cc picks one; a benchmark may run a family it would not pick, or some of its parts.
#pragma once

#include "ops/cuda/moe/moe.h"

namespace sparrow::ops::cuda {

enum MoePart : unsigned { kMoeRoute = 1, kMoeGateUp = 2, kMoeDown = 4, kMoeCombine = 8, kMoeAll = 15 };

// Few rows: the workspace holds the hidden rows, [rows * (top_k + 1), inter]. Routing is part of both
// products, the sum part of the second. Where it pays both are one launch, if all parts are wanted.
bool moe_few_fits(const MoeShape& shape, int rows);
void moe_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);
// The one launch takes up to 8 rows and pays up to kMoeOneLaunchRows: 21.7 us against 24.6 for one row of
// M3's rank, 35.5 against 38.2 for two, but 60.8 against 60.4 for four.
inline constexpr int kMoeOneLaunchRows = 2;
bool moe_one_launch_fits(const MoeShape& shape, const MoeArgs& args);
bool moe_one_launch_pays(const MoeShape& shape, const MoeArgs& args);
void moe_one_launch(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream);
// A dense MLP of at most kLinearSmallRows rows.
void mlp_few(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);

void moe_many(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream, unsigned parts = kMoeAll);

}  // namespace sparrow::ops::cuda
