// SPDX-License-Identifier: Apache-2.0
// From what is planned to the rows that run: slices of sequences become a Batch.
#pragma once

#include <span>

#include "engine/schedule/step_plan.h"
#include "model/batch.h"

namespace sparrow {

// The batch is overwritten, and kept by callers for its memory. Every sequence has blocks for its slice.
// Slices are sorted by group, of which there are `groups`.
void fill_batch(std::span<const StepSlice> slices, Batch& batch, int groups = 1);

}  // namespace sparrow
