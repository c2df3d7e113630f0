// SPDX-License-Identifier: Apache-2.0
// StepUpload: a step's metadata on its way to the GPU. Where each array lies depends on the step's shape
// alone, so that a graph captured for a shape finds the arrays of every later step of that shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/memory/step_layout.h"
#include "model/batch.h"
#include "model/cuda/cuda_text_model.h"

namespace sparrow {

class StepUpload {
 public:
  // `max_columns`: blocks of the longest sequence.
  static Result<StepUpload> create(int max_step_tokens, int max_step_sequences, int max_columns);

  // The shape of a batch as it is.
  static StepShape shape_of(const Batch& batch);
  // Pointers for a step of that shape; nothing is copied.
  DeviceBatch describe(const StepShape& shape) const;
  // Copies the batch into a shape that holds it, padding what it leaves free. `drawn`: the ids of the step
  // before, for rows that get theirs from there.
  DeviceBatch upload(const Batch& batch, const StepShape& shape, const int32_t* drawn, cudaStream_t stream);

  size_t device_bytes() const { return device_.bytes() + table_.bytes(); }

 private:
  PinnedBuffer host_, host_table_;
  DeviceBuffer device_, table_;
  Event copied_;
};

}  // namespace sparrow
