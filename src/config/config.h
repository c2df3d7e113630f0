// SPDX-License-Identifier: Apache-2.0
// ModelConfig: what config.json says, in one spelling, checked. Nothing after this looks at the JSON again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace sparrow {

// How linear layers are quantised, but for those that ModelConfig::unquantised names. kMxfp4Mxfp8: in MXFP4,
// and in MXFP8 where ModelConfig::mxfp8 says so.
enum class QuantFormat : uint8_t { kNone, kMxfp8, kMxfp4, kMxfp4Mxfp8 };

// As flags and presets call it; empty: not quantised.
constexpr std::string_view name_of(QuantFormat format) {
  constexpr std::string_view kNames[] = {"", "mxfp8", "mxfp4", "mxfp4-mxfp8"};
  return kNames[static_cast<size_t>(format)];
}

// How the names of a checkpoint's tensors are spelled where two spellings are in use. The default is the
// released one.
struct NameScheme {
  bool text_only = false;     // names of the text model have no prefix before them
  bool dense_as_moe = false;  // the dense feed-forward is called as the one of a MoE layer

  bool operator==(const NameScheme&) const = default;
};

struct RopeConfig {
  double theta = 5e6;
  int rotary_dim = 64;
  // Not a field of config.json: transformers' model.to(bfloat16) also rounds the frequencies, and comparing
  // with such a run needs the same. At a million tokens it would be far off.
  bool round_frequencies = false;
  // The rest is read only with yarn.
  bool yarn = false;
  double factor = 1.0, beta_fast = 32.0, beta_slow = 1.0;
  std::optional<double> attention_factor;
  int64_t original_max_positions = 0;
  bool truncate = true;
};

struct VisionConfig {
  int hidden_size = 0, num_heads = 0, num_layers = 0, intermediate_size = 0;
  int num_channels = 3, patch_size = 14, temporal_patch_size = 2, spatial_merge_size = 2;
  int projector_hidden_size = 0;
  int segment_max_frames = 4;
  float layer_norm_eps = 1e-5f;
  double rope_theta = 10000.0;
  int32_t image_token_id = 0, video_token_id = 0;
};

struct ModelConfig {
  DType dtype = DType::kBF16;  // activations: bf16 or f32
  QuantFormat quant = QuantFormat::kNone;
  // Modules that are not quantised where others are, each with all that is below it; * in a name stands for
  // any characters. As config.json lists them: checkpoint/mx/exclusions.h reads them.
  std::vector<std::string> unquantised;
  std::vector<std::string> mxfp8;  // listed likewise
  // Not a field of config.json: what its tensors are called (checkpoint/tensor_table.h finds out), and so
  // what the lists above are about.
  NameScheme names;

  int vocab_size = 0, hidden_size = 0, num_layers = 0;
  int num_query_heads = 0, num_kv_heads = 0, head_dim = 128;
  int expert_intermediate_size = 0, dense_intermediate_size = 0, shared_intermediate_size = 0;
  int num_experts = 0, experts_per_token = 0;
  std::vector<uint8_t> layer_is_sparse;  // [num_layers] block-sparse attention
  std::vector<uint8_t> layer_is_moe;     // [num_layers]

  float rms_norm_eps = 1e-6f;
  float swiglu_alpha = 1.702f, swiglu_limit = 7.0f, swiglu_beta = 1.0f;
  float routed_scaling_factor = 2.0f;

  int top_k_blocks = 16, local_blocks = 1, init_blocks = 0;
  int64_t max_positions = 0;
  RopeConfig rope;
  std::optional<VisionConfig> vision;

  std::vector<int32_t> eos_token_ids;
  // Sampling defaults of generation_config.json.
  std::optional<double> temperature, top_p;
  std::optional<int> top_k;
};

// Takes the spelling of the released checkpoints and the flat one of transformers. Whatever this program
// cannot compute exactly is an error that names the field. `generation_config_json` may be empty.
Result<ModelConfig> parse_config(std::string_view config_json, std::string_view generation_config_json);

// Reads config.json and, where it exists, generation_config.json. `path` is their folder, or a config.json
// alone. `overrides`, if not empty, is JSON that changes config.json: see overrides.h.
Result<ModelConfig> load_config(const std::filesystem::path& path, std::string_view overrides = {});

}  // namespace sparrow
