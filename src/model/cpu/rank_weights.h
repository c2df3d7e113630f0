// SPDX-License-Identifier: Apache-2.0
// A rank's part of the weights, as views of the whole: a CPU's ranks use what lies in the mapped files. And
// the parts in which ranks add up what each of them has some columns of.
#pragma once

#include <memory>
#include <vector>

#include "checkpoint/weights.h"
#include "comm/grid.h"
#include "config/config.h"

namespace sparrow {

// Into how many equal parts of their columns products are cut that ranks share: each part is summed for
// itself and the parts in a binary tree, so that the bits are the same on 1, 2, 4 and 8 ranks. 8, or as many
// as a small model has room for.
struct SumParts {
  int heads = 1;    // of the output projection, whose columns are query heads
  int dense = 1;    // of a dense feed-forward's channels
  int experts = 1;  // of an expert's channels, routed or shared
};
SumParts sum_parts(const ModelConfig& config);
// Those of them that one rank has.
SumParts sum_parts(const ModelConfig& config, const Grid& grid);

// The embedding stays whole: a row of it is looked up where it lies. So does the projection to index queries:
// a rank scores its share of the blocks for all heads. Experts of other ranks have no weights.
//
// A quantised matrix whose parts would cut through groups that share a scale, as those of very small models
// would, is expanded into `expanded`: sums have the parts of the bf16 model, and so its bits.
using ExpandedMatrices = std::vector<std::unique_ptr<BFloat16[]>>;
Weights rank_weights(const ModelConfig& config, const Grid& grid, const Weights& whole,
                     ExpandedMatrices& expanded);

}  // namespace sparrow
