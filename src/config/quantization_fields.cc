// SPDX-License-Identifier: Apache-2.0
// quantization_config: MXFP8 as MiniMax writes it, MXFP4 as AMD's Quark does, where some layers may be in
// MXFP8. How activations are quantised
// on machines that can is nothing to this program, which keeps them as they are.
#include "config/config_fields.h"

namespace sparrow {
namespace {

constexpr int kGroup = 32;

// Fields that may be absent or empty.
Status require_empty(const Json& object, std::string_view key) {
  const auto found = object.find(key);
  if (!found || (found->is_object() && found->size() == 0)) return Ok{};
  return unsupported(strf("{} is {}; only {{}} is supported", found->path(), found->brief()));
}

Result<std::vector<std::string>> read_modules(const Json& quant, std::string_view key) {
  std::vector<std::string> modules;
  const auto list = quant.find(key);
  if (!list) return modules;
  SPARROW_TRY(list->expect_array());
  for (size_t i = 0; i < list->size(); ++i) modules.push_back(SPARROW_TRY(list->element(i).as_string()));
  return modules;
}

Status read_mxfp8(const Json& quant, ModelConfig& config) {
  config.quant = QuantFormat::kMxfp8;
  config.unquantised = SPARROW_TRY(read_modules(quant, "ignored_layers"));
  const auto block = quant.find("weight_block_size");
  if (!block) return Ok{};
  const bool is_1_by_32 = block->is_array() && block->size() == 2 && block->element(0).as_int(1, 1).ok() &&
                          block->element(1).as_int(kGroup, kGroup).ok();
  if (is_1_by_32) return Ok{};
  return unsupported(strf("{} is {}; only [1, {}] is supported", block->path(), block->brief(), kGroup));
}

// What Quark says of a weight's format: groups of 32 numbers of that type that share a power of two.
Status check_quark_weight(const Json& weight, std::string_view dtype) {
  // What decides the format must be there: Quark has other defaults.
  for (const std::string_view key : {"dtype", "qscheme", "group_size", "scale_format"})
    SPARROW_TRY(weight.at(key));
  SPARROW_TRY(require_string(weight, "dtype", {dtype}));
  SPARROW_TRY(require_string(weight, "qscheme", {"per_group"}));
  SPARROW_TRY(require_int(weight, "group_size", kGroup));
  SPARROW_TRY(require_string(weight, "scale_format", {"e8m0"}));
  SPARROW_TRY(require_int(weight, "ch_axis", -1));
  SPARROW_TRY(require_bool(weight, "is_dynamic", false));
  return require_bool(weight, "is_scale_quant", false);
}

Status read_quark(const Json& quant, ModelConfig& config) {
  config.quant = QuantFormat::kMxfp4;
  config.unquantised = SPARROW_TRY(read_modules(quant, "exclude"));
  SPARROW_TRY(
      check_quark_weight(SPARROW_TRY(SPARROW_TRY(quant.at("global_quant_config")).at("weight")), "fp4"));
  if (const auto layers = quant.find("layer_quant_config")) {
    SPARROW_TRY(layers->expect_object());
    for (size_t i = 0; i < layers->size(); ++i) {
      SPARROW_TRY(check_quark_weight(SPARROW_TRY(layers->member(i).at("weight")), "fp8_e4m3"));
      config.mxfp8.emplace_back(layers->key(i));
      config.quant = QuantFormat::kMxfp4Mxfp8;
    }
  }
  SPARROW_TRY(require_empty(quant, "layer_type_quant_config"));
  if (const auto exported = quant.find("export")) {
    SPARROW_TRY(require_string(*exported, "weight_format", {"real_quantized"}));
    SPARROW_TRY(require_string(*exported, "pack_method", {"reorder", "order"}));  // the same for fp4
  }
  return Ok{};
}

}  // namespace

Status read_quantization(const Json& quant, ModelConfig& config) {
  const std::string method = SPARROW_TRY(SPARROW_TRY(quant.at("quant_method")).as_string());
  SPARROW_TRY(require_string(quant, "quant_method", {"mxfp8", "quark"}));
  return method == "mxfp8" ? read_mxfp8(quant, config) : read_quark(quant, config);
}

}  // namespace sparrow
