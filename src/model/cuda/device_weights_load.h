// SPDX-License-Identifier: Apache-2.0
// The way of a checkpoint's tensors to the GPU: page cache, page-locked buffer, staging buffer, final place.
#pragma once

#include <cstddef>
#include <span>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/weights.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/pack/pack.h"
#include "model/device_layout.h"

namespace sparrow {

// Where rows [first_row, first_row + num_rows) of a part go, in the memory that starts at `memory`.
PackTarget pack_target(const DevicePart& part, std::byte* memory, int64_t first_row, int64_t num_rows);

// Whether DeviceLoadOptions::fold_rows is about it.
bool is_folded(const DevicePart& part);

// More than these do not make a load faster. Where matrices are cut by columns, processors are its limit: all
// of their pages are mapped for a share of the bytes.
int max_load_threads(std::span<const DevicePart> parts);

// Copies every part to its place and waits for it. Fails where no buffers can be had.
Result<FoldedCodes> copy_parts(std::span<const DevicePart> parts, const Weights& weights, std::byte* memory,
                               const ProgressFn& progress, const DeviceLoadOptions& options);

}  // namespace sparrow
