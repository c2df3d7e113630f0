// SPDX-License-Identifier: Apache-2.0
// The census: which tensors a checkpoint of this configuration must hold, by name, shape and type.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "config/config.h"

namespace sparrow {

// How the names of a checkpoint are spelled where two spellings are in use.
struct NameScheme {
  std::string text_prefix = "language_model.";  // "" in text-only checkpoints
  std::string dense_mlp = "mlp";                // "block_sparse_moe" where transformers wrote the file
};

// Every tensor, text and vision, with the type the released checkpoints store. F32 and BF16 stand for each
// other.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const NameScheme& names = {});

// The scale tensor that belongs to a quantised weight.
std::string scale_name(const std::string& weight_name);

}  // namespace sparrow
