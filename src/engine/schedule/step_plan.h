// SPDX-License-Identifier: Apache-2.0
// StepPlan: what the scheduler wants run next, by sequence. step_batch.h makes rows of it. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/sequence.h"

namespace sparrow {

// Rows of a slice: row r is the token at position first + r.
struct RowRange {
  int first = 0, count = 0;
};

// The next `num_tokens` uncomputed tokens of a sequence, and the rows of them whose logits are wanted. The
// scored rows come before the sampled ones.
struct StepSlice {
  Sequence* sequence = nullptr;  // until commit(), and from then on until it is finished
  int64_t first = 0;             // position of row 0
  int num_tokens = 0;
  RowRange scored;        // what is wanted is the probability of the prompt's own next id
  RowRange sampled;       // ids are drawn from them:
  int draws_per_row = 1;  // one, or one for each choice to come
  int drawn_by = -1;  // the draw of the step before that gives the slice its one token; -1: it has its ids

  int num_draws() const { return sampled.count * draws_per_row; }
};

struct Expired {
  SequenceId id;
  uint64_t owner;
  WaitReason reason;  // why it had not
};

struct StepPlan {
  std::vector<StepSlice> slices;  // by group, decodes first in each
  std::vector<BlockCopy> copies;  // to make before the slices run, in this order
  std::vector<Expired> expired;   // their queue deadline passed before they started; gone already
  int num_tokens = 0;
};

}  // namespace sparrow
