// SPDX-License-Identifier: Apache-2.0
// The table of tensors: one row for each that a checkpoint of M3 must hold, text and vision, in the order in
// which checkpoints are written here; and what else it may hold. No other file knows how a tensor is called.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/tensor_row.h"
#include "config/config.h"

namespace sparrow {

std::vector<TensorRow> tensor_table(const ModelConfig& config);

// By what a checkpoint holds; where that is not clear, the census says what is missing.
NameScheme detect_names(const ModelConfig& config, const std::function<bool(const std::string& name)>& holds);

// Scalars that a checkpoint may hold for a layer's fp8 cache, for kK and kV. The first that is there counts.
std::vector<std::string> kv_scale_names(TensorRole role, int layer, const NameScheme& names);

// Whether a checkpoint may hold a tensor of this name that is no row: the scale of a cache (or of queries,
// which nothing here rounds to fp8), or a head that predicts further tokens, which is not computed here.
bool is_optional_tensor(std::string_view name);

// What the scales of a quantised matrix are called.
std::string scale_name(const TensorRow& row);
// What the scales beside a matrix may be called, in any format: where a checkpoint holds one, that matrix is
// quantised.
std::vector<std::string> scale_names(const TensorRow& row);

// The modules whose matrices stay as they are where the others are quantised: in MXFP8 as the released
// config.json lists them, in MXFP4 the patterns that Quark was given. Layers from `first_moe_layer` on have a
// router.
std::vector<std::string> unquantised_modules(QuantFormat format, int first_moe_layer, int num_layers);
// Those that are in MXFP8 where experts are in MXFP4.
std::vector<std::string> mxfp8_modules();

}  // namespace sparrow
