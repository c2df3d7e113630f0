// SPDX-License-Identifier: Apache-2.0
// StepUpload: a step's metadata on its way to the GPU. Where each array lies depends on the step's shape
// alone, so that a graph captured for a shape finds the arrays of every later step of that shape.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/batch.h"
#include "model/cuda/cuda_text_model.h"

namespace sparrow {

struct StepShape {
  int decodes = 0;         // sequences with one token, which come first; padding included
  int prefills = 0;        // the others
  int prefill_tokens = 0;  // of them
  int longest_prefill = 0;
  int table_columns = 0;  // blocks of the longest sequence that fits
  int logits = 0;

  int tokens() const { return decodes + prefill_tokens; }
  int sequences() const { return decodes + prefills; }
};

class StepUpload {
 public:
  // `max_columns`: blocks of the longest sequence.
  static Result<StepUpload> create(int max_tokens, int max_sequences, int max_columns);

  // The shape of a batch as it is.
  static StepShape shape_of(const Batch& batch);
  // Pointers for a step of that shape; nothing is copied.
  DeviceBatch describe(const StepShape& shape) const;
  // Copies the batch into a shape that holds it, padding what it leaves free. `drawn`: the ids of the step
  // before, for rows that get theirs from there.
  DeviceBatch upload(const Batch& batch, const StepShape& shape, const int32_t* drawn, cudaStream_t stream);

  size_t device_bytes() const { return device_.bytes() + table_.bytes(); }

 private:
  struct Offsets;
  static Offsets offsets_of(const StepShape& shape);

  PinnedBuffer host_, host_table_;
  DeviceBuffer device_, table_;
  Event copied_;
};

}  // namespace sparrow
