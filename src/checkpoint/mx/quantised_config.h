// SPDX-License-Identifier: Apache-2.0
// The configuration of a model quantised as published ones are: MXFP8 as MiniMax does it, MXFP4 as AMD does
// with Quark; and of one that has the experts of the second and all else of the first.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "checkpoint/tensor_table.h"
#include "config/config.h"

namespace sparrow {

// What quantised matrices of that format make of a model.
constexpr QuantFormat quant_of(MatrixFormat format) {
  return format == MatrixFormat::kMxfp8   ? QuantFormat::kMxfp8
         : format == MatrixFormat::kMxfp4 ? QuantFormat::kMxfp4
                                          : QuantFormat::kNone;
}

// The same model with its matrices in that format: MXFP8 of all linear layers but the router, MXFP4 of the
// experts, or MXFP4 of the experts and MXFP8 of the others. kNone: with none of them quantised.
ModelConfig quantised(ModelConfig config, QuantFormat format);

// A config.json with the quantization_config of that model, and with all else it had.
Result<std::string> quantised_config_json(std::string_view config_json, const ModelConfig& quantised);

}  // namespace sparrow
