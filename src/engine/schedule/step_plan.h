// SPDX-License-Identifier: Apache-2.0
// StepPlan: what the scheduler wants run next. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/schedule/sequence.h"

namespace sparrow {

// The next `num_tokens` uncomputed tokens of a sequence.
struct PlanSlice {
  Sequence* sequence;  // until commit(), and from then on until it is finished
  int64_t first;       // position of the first of them
  int num_tokens;
  int num_samples;  // ids to draw from the last one's logits: none, one, or one for each choice to come
};

struct Expired {
  SequenceId id;
  uint64_t owner;
  WaitReason reason;  // why it had not
};

struct StepPlan {
  std::vector<PlanSlice> slices;  // decodes first
  std::vector<BlockCopy> copies;  // to make before the slices run, in this order
  std::vector<Expired> expired;   // their queue deadline passed before they started; gone already
  int num_tokens = 0;
};

}  // namespace sparrow
