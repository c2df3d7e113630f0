// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint again with its matrices in MXFP8 or MXFP4, as the published ones have them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"
#include "base/result.h"
#include "checkpoint/mx/mx_groups.h"
#include "checkpoint/tensor_row.h"
#include "config/config.h"

namespace sparrow {

struct QuantiseOptions {
  std::filesystem::path from, to;  // folders; the second is made, or empty
  QuantFormat format = QuantFormat::kMxfp8;
};

// What became of the tensors of one part of the model.
struct QuantisedPart {
  LedgerPart part = LedgerPart::kVision;
  int64_t matrices = 0;  // that were rounded
  uint64_t bytes_before = 0, bytes_after = 0;
  RoundingError error;
  double worst = 0;  // relative error of the matrix that rounding moved most
  std::string worst_matrix;
};

struct QuantiseReport {
  QuantFormat from = QuantFormat::kNone;  // what the source had
  std::vector<QuantisedPart> parts;       // those that the model has
  // Of the folder, what is no small file (large ones, weights that the model has no use for, folders, links
  // to nothing), and tensors of unknown types that the model has no use for.
  std::vector<std::string> left_out;
};

// Tensor by tensor, in memory that does not grow with the model. Files keep their names; index and
// config.json come last, so that what was interrupted is no checkpoint, and after an error nothing is left.
// A matrix that has the format already is copied, and one whose format the model must not have becomes what
// it stands for.
Result<QuantiseReport> quantise_checkpoint(const QuantiseOptions& options, const ProgressFn& progress = {});

}  // namespace sparrow
