// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/mx/quantised_config.h"

#include <algorithm>

#include "base/json/json.h"
#include "base/json/json_writer.h"

namespace sparrow {
namespace {

constexpr std::string_view kKey = "quantization_config", kText = "text_config";

// Quark lists every linear layer that it leaves alone, embeddings apart.
std::vector<std::string> all_but_experts(const ModelConfig& plain) {
  std::vector<std::string> modules;
  for (const TensorRow& row : tensor_table(plain)) {
    const bool is_linear =
        row.piece == TensorPiece::kValues && row.spec.shape.size() == 2 && row.role != TensorRole::kEmbed;
    const bool is_expert = row.part == LedgerPart::kRoutedExperts || row.part == LedgerPart::kSharedExperts;
    if (is_linear && !is_expert) modules.push_back(row.spec.name.substr(0, row.spec.name.rfind('.')));
  }
  std::ranges::sort(modules);
  return modules;
}

void write_modules(JsonWriter& out, std::string_view key, const std::vector<std::string>& modules) {
  out.key(key).begin_array();
  for (const std::string& module : modules) out.string(module);
  out.end_array();
}

void write_mxfp8(JsonWriter& out, const ModelConfig& config) {
  out.begin_object().key("quant_method").string("mxfp8").key("activation_scheme").string("dynamic");
  out.key("weight_block_size").begin_array().integer(1).integer(kScaleGroup).end_array();
  write_modules(out, "ignored_layers", config.unquantised);
  out.end_object();
}

void write_quark_tensor(JsonWriter& out, std::string_view key, std::string_view dtype, bool is_dynamic) {
  out.key(key).begin_object().key("dtype").string(dtype).key("is_dynamic").boolean(is_dynamic);
  out.key("qscheme").string("per_group").key("ch_axis").integer(-1).key("group_size").integer(kScaleGroup);
  out.key("block_size").null().key("symmetric").null().key("round_method").string("half_even");
  out.key("scale_type").string("float").key("zero_point_type").string("int32");
  out.key("scale_format").string("e8m0").key("scale_calculation_mode").string("even");
  out.key("mx_element_dtype").null().key("observer_cls").string("PerBlockMXObserver");
  out.key("is_scale_quant").boolean(false).end_object();
}

void write_quark_layers(JsonWriter& out, std::string_view key, std::string_view dtype) {
  out.key(key).begin_object();
  write_quark_tensor(out, "input_tensors", dtype, /*is_dynamic=*/true);
  out.key("output_tensors").null();
  write_quark_tensor(out, "weight", dtype, /*is_dynamic=*/false);
  out.key("bias").null().key("target_device").null().end_object();
}

// All that Quark 0.13 writes but its version.
void write_quark(JsonWriter& out, const ModelConfig& config) {
  out.begin_object().key("quant_method").string("quark").key("quant_mode").string("eager_mode");
  write_quark_layers(out, "global_quant_config", "fp4");
  write_modules(out, "exclude", config.unquantised);
  out.key("algo_config").null().key("softmax_quant_spec").null();
  out.key("layer_type_quant_config").begin_object().end_object();
  out.key("layer_quant_config").begin_object();
  for (const std::string& module : config.mxfp8) write_quark_layers(out, module, "fp8_e4m3");
  out.end_object();
  out.key("kv_cache_quant_config").begin_object().end_object().key("kv_cache_post_rope").boolean(false);
  out.key("export").begin_object().key("kv_cache_group").begin_array().end_array();
  out.key("min_kv_scale").number(0.0).key("pack_method").string("reorder");
  out.key("weight_format").string("real_quantized").key("weight_merge_groups").null().end_object();
  out.end_object();
}

// All of an object but how it is quantised, which may stand with the text model, too.
void copy_members(const Json& object, JsonWriter& out) {
  for (size_t i = 0; i < object.size(); ++i) {
    const Json member = object.member(i);
    if (object.key(i) == kKey) continue;
    out.key(object.key(i));
    if (object.key(i) == kText && member.is_object()) {
      out.begin_object();
      copy_members(member, out);
      out.end_object();
    } else {
      write_json(member, out);
    }
  }
}

}  // namespace

ModelConfig quantised(ModelConfig config, QuantFormat format) {
  config.quant = QuantFormat::kNone;
  config.unquantised.clear();
  config.mxfp8.clear();
  const auto first_moe = std::ranges::find(config.layer_is_moe, 1) - config.layer_is_moe.begin();
  if (format == QuantFormat::kMxfp4) config.unquantised = all_but_experts(config);
  if (format == QuantFormat::kMxfp8 || format == QuantFormat::kMxfp4Mxfp8)
    config.unquantised = unquantised_modules(format, static_cast<int>(first_moe), config.num_layers);
  if (format == QuantFormat::kMxfp4Mxfp8) config.mxfp8 = mxfp8_modules();
  config.quant = format;
  return config;
}

Result<std::string> quantised_config_json(std::string_view config_json, const ModelConfig& quantised) {
  const JsonDocument document = SPARROW_TRY(JsonDocument::parse(config_json, "config.json"));
  const Json root = document.root();
  SPARROW_TRY(root.expect_object());
  JsonWriter out(JsonWriter::Style::kIndented);
  out.begin_object();
  copy_members(root, out);
  if (quantised.quant == QuantFormat::kMxfp8) write_mxfp8(out.key(kKey), quantised);
  if (quantised.quant == QuantFormat::kMxfp4 || quantised.quant == QuantFormat::kMxfp4Mxfp8)
    write_quark(out.key(kKey), quantised);
  out.end_object();
  return out.take() + "\n";
}

}  // namespace sparrow
