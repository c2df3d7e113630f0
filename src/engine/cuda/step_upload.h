// SPDX-License-Identifier: Apache-2.0
// StepUpload: a step's metadata on its way to the GPU. Where each array lies depends on the step's shape
// alone, so that a graph captured for a shape finds the arrays of every later step of that shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/memory/rank_step.h"
#include "model/batch.h"
#include "model/cuda/cuda_text_model.h"

namespace sparrow {

class StepUpload {
 public:
  // `max_columns`: blocks of the longest sequence.
  static Result<StepUpload> create(int max_step_tokens, int max_step_sequences, int max_columns,
                                   int groups = 1);

  // Pointers for a step of that shape; nothing is copied.
  DeviceBatch describe(const StepShape& shape) const;
  // Copies the batch into a shape that holds it, padding what it leaves free. `drawn`: the ids of the step
  // before, for rows that get theirs from there. `groups`: all of them, this one's among them.
  DeviceBatch upload(const Batch& batch, const StepShape& shape, std::span<const RankStep::Group> groups,
                     const int32_t* drawn, cudaStream_t stream);

  size_t device_bytes() const { return device_.bytes() + table_.bytes(); }

 private:
  PinnedBuffer host_, host_table_;
  DeviceBuffer device_, table_;
  Event copied_;
};

}  // namespace sparrow
