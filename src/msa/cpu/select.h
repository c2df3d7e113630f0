// SPDX-License-Identifier: Apache-2.0
// The choice of blocks from their scores.
#pragma once

#include "msa/msa.h"

namespace msa {

// Which blocks need a score for a query whose own block is `own`: [first, end). All other chosen blocks are
// forced. Empty where nothing is to be decided, because every visible block has a place or no place is left.
struct ScoredRange {
  int first = 0, end = 0;
};
ScoredRange scored_range(const Selection& selection, int own);

// The best of `count` blocks with these scores, none of them NaN, best first, block -1 at the tail. `blocks`
// ascend.
void best_blocks(const float* scores, const int32_t* blocks, int count, int top_k, Candidate* best);

// Writes the chosen ids, ascending, -1 padded to top_k, from lists of `top_k` candidates that lie `stride`
// apart.
void select_blocks(const Selection& selection, int own, const Candidate* lists, int num_lists, int64_t stride,
                   int32_t* selected);

}  // namespace msa
