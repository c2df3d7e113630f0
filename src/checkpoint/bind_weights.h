// SPDX-License-Identifier: Apache-2.0
// From the rows of the table to the model's weights, wherever the tensors lie.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/tensor_row.h"
#include "checkpoint/weights.h"
#include "config/config.h"

namespace sparrow {

struct StoredTensor {
  std::span<const std::byte> bytes;
  DType dtype;
  std::span<const int64_t> shape;
};
// By row: every tensor is there, with the right shape.
using StoredTensors = std::function<StoredTensor(size_t row)>;

using TensorCopies = std::vector<std::unique_ptr<std::byte[]>>;

// Views of what is stored; `copies` gets the tensors that could not be used where they lie.
// Without `vision` its tensors are not asked for.
Weights bind_weights(const ModelConfig& config, std::span<const TensorRow> rows, const StoredTensors& stored,
                     TensorCopies& copies, bool vision = true);

}  // namespace sparrow
