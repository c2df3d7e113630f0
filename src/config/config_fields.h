// SPDX-License-Identifier: Apache-2.0
// How config.json's fields are read: ranges, fields with one supported value, lists with one entry for each
// layer, rotary parameters, quantisation. Used by src/config only.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "config/config.h"

namespace sparrow {

Error unsupported(std::string message);

// From 1 to max.
Result<int> read_size(const Json& object, std::string_view key, int fallback, int64_t max);
// Also a multiple of 32: scales of quantised weights and the matrix kernels step through the input in such
// groups.
Result<int> read_multiple(const Json& object, std::string_view key, int fallback, int64_t max);
Result<double> read_number(const Json& object, std::string_view key, double fallback, double min, double max);
Result<float> read_float(const Json& object, std::string_view key, double fallback, double min, double max);

// Fields that may be absent, or have a value this program can compute.
Status require_bool(const Json& object, std::string_view key, bool wanted);
Status require_string(const Json& object, std::string_view key,
                      std::initializer_list<std::string_view> wanted);
Status require_int(const Json& object, std::string_view key, int wanted);

using LayerFlags = std::vector<uint8_t>;  // [num_layers] of 0 and 1

Result<LayerFlags> read_freq(const Json& list, int num_layers);
Result<LayerFlags> read_moe_layers(const Json& text, int num_layers);
Result<LayerFlags> read_sparse_layers(const Json& text, const std::optional<Json>& sparse, int num_layers);

// The format, and what is left out of it.
Status read_quantization(const Json& quant, ModelConfig& config);

Result<RopeConfig> read_rope(const Json& text, int head_dim, int64_t max_positions);

}  // namespace sparrow
