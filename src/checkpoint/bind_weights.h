// SPDX-License-Identifier: Apache-2.0
// From tensors by name to the text model's weights, wherever the tensors lie.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/census.h"
#include "checkpoint/weights.h"

namespace sparrow {

struct StoredTensor {
  std::span<const std::byte> bytes;
  DType dtype;
  std::span<const int64_t> shape;
};
// By name: every tensor of expected_tensors() with these names is there, with the right shape.
using StoredTensors = std::function<StoredTensor(const std::string& name)>;

using TensorCopies = std::vector<std::unique_ptr<std::byte[]>>;

// Views of what is stored; `copies` gets the tensors that could not be used where they lie.
Weights bind_weights(const ModelConfig& config, const NameScheme& names, const StoredTensors& stored,
                     TensorCopies& copies);

}  // namespace sparrow
