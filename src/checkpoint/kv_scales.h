// SPDX-License-Identifier: Apache-2.0
// The scales of an fp8 cache, where a checkpoint has them: they were measured with the model, and go by
// several names.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/tensor_table.h"
#include "checkpoint/weights.h"

namespace sparrow {

// The number that a tensor of one element holds; nullopt: there is no such tensor.
using ScalarTensors = std::function<std::optional<float>(const std::string& name)>;

// Of one layer. One of the pair alone counts for both. Error: a scale that is not a positive number.
Result<std::optional<KvScales>> find_kv_scales(int layer, const NameScheme& names,
                                               const ScalarTensors& scalars);

// [layers, kv_heads, 2 (K, V)] as a cache takes them; empty where no layer has any.
std::vector<float> kv_scale_table(std::span<const LayerWeights> layers, int kv_heads);

}  // namespace sparrow
