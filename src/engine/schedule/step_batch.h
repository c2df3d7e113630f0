// SPDX-License-Identifier: Apache-2.0
// From what is planned to the rows that run: slices of sequences become a Batch.
#pragma once

#include <span>

#include "engine/media/feature_store.h"
#include "engine/schedule/step_plan.h"
#include "model/batch.h"

namespace sparrow {

// The batch is overwritten, and kept by callers for its memory. Every sequence has blocks for its slice.
// Slices are sorted by group, of which there are `groups`. Features that they need are in `features`; none
// need any where it is left out.
void fill_batch(std::span<const StepSlice> slices, Batch& batch, int groups = 1,
                const FeatureStore* features = nullptr);

}  // namespace sparrow
