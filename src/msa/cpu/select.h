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

// Writes the chosen ids, ascending, -1 padded to top_k. scores[n] is read for n in scored_range only and
// holds no NaN.
void select_blocks(const Selection& selection, int own, const float* scores, int32_t* selected);

}  // namespace msa
