// SPDX-License-Identifier: Apache-2.0
// The presets, and their config.json in the spelling of the released checkpoints.
#include <array>
#include <initializer_list>
#include <utility>

#include "base/json/json.h"
#include "checkpoint/mx/quantised_config.h"
#include "checkpoint/random/synthetic.h"

namespace sparrow {
namespace {

struct PresetShape {
  SyntheticPreset preset;
  int vocab, hidden, layers, dense_layers, query_heads, kv_heads;
  int experts, experts_per_token, expert_size, dense_size, top_k_blocks, max_positions;
  int vision_hidden, vision_heads, vision_layers, vision_size;
  int image_token, video_token, eos_token;  // as far from the end of the vocabulary as in the released model
};

constexpr std::array<PresetShape, 4> kPresets = {{
    {.preset = {"tiny", "2 million parameters, 3 layers, 8 experts: tests and first steps"},
     .vocab = 512,
     .hidden = 128,
     .layers = 3,
     .dense_layers = 1,
     .query_heads = 8,
     .kv_heads = 2,
     .experts = 8,
     .experts_per_token = 2,
     .expert_size = 64,
     .dense_size = 384,
     .top_k_blocks = 4,
     .max_positions = 65536,
     .vision_hidden = 32,
     .vision_heads = 2,
     .vision_layers = 2,
     .vision_size = 64,
     .image_token = 473,
     .video_token = 474,
     .eos_token = 468},
    {.preset = {"small", "300 million parameters, 8 layers, 16 experts: measurements on a laptop"},
     .vocab = 8192,
     .hidden = 1024,
     .layers = 8,
     .dense_layers = 1,
     .query_heads = 32,
     .kv_heads = 2,
     .experts = 16,
     .experts_per_token = 4,
     .expert_size = 512,
     .dense_size = 4096,
     .top_k_blocks = 16,
     .max_positions = 1048576,
     .vision_hidden = 160,
     .vision_heads = 2,
     .vision_layers = 2,
     .vision_size = 640,
     .image_token = 8153,
     .video_token = 8154,
     .eos_token = 8148},
    {.preset = {"m3-layer", "one dense and one sparse layer of MiniMax-M3's real size: 20 GB"},
     .vocab = 200064,
     .hidden = 6144,
     .layers = 2,
     .dense_layers = 1,
     .query_heads = 64,
     .kv_heads = 4,
     .experts = 128,
     .experts_per_token = 4,
     .expert_size = 3072,
     .dense_size = 12288,
     .top_k_blocks = 16,
     .max_positions = 1048576,
     .vision_hidden = 1280,
     .vision_heads = 16,
     .vision_layers = 1,
     .vision_size = 5120,
     .image_token = 200025,
     .video_token = 200026,
     .eos_token = 200020},
    {.preset = {"m3", "MiniMax-M3 itself", /*is_writable=*/false},
     .vocab = 200064,
     .hidden = 6144,
     .layers = 60,
     .dense_layers = 3,
     .query_heads = 64,
     .kv_heads = 4,
     .experts = 128,
     .experts_per_token = 4,
     .expert_size = 3072,
     .dense_size = 12288,
     .top_k_blocks = 16,
     .max_positions = 1048576,
     .vision_hidden = 1280,
     .vision_heads = 16,
     .vision_layers = 32,
     .vision_size = 5120,
     .image_token = 200025,
     .video_token = 200026,
     .eos_token = 200020},
}};

using Fields = std::vector<std::pair<std::string_view, std::string>>;

std::string object(const Fields& fields, int depth) {
  const std::string indent(static_cast<size_t>(2 * depth + 2), ' ');
  std::string out = "{";
  for (const auto& [key, value] : fields)
    out += strf("{}\n{}{}: {}", out.size() > 1 ? "," : "", indent, json_quoted(key), value);
  return out + "\n" + std::string(static_cast<size_t>(2 * depth), ' ') + "}";
}

std::string number(int64_t value) {
  return strf("{}", value);
}

// "[0, 1, 1]": 0 for the dense layers, which come first.
std::string layer_list(const PresetShape& shape) {
  std::string out = "[";
  for (int i = 0; i < shape.layers; ++i)
    out += strf("{}{}", i > 0 ? ", " : "", i < shape.dense_layers ? 0 : 1);
  return out + "]";
}

std::string sparse_config(const PresetShape& shape) {
  return object({{"use_sparse_attention", "true"},
                 {"sparse_index_dim", "128"},
                 {"sparse_num_index_heads", number(shape.kv_heads)},
                 {"sparse_topk_blocks", number(shape.top_k_blocks)},
                 {"sparse_block_size", "128"},
                 {"sparse_local_block", "1"},
                 {"sparse_init_block", "0"},
                 {"sparse_score_type", "\"max\""},
                 {"sparse_disable_index_value", layer_list(shape)},
                 {"sparse_attention_freq", layer_list(shape)}},
                2);
}

std::string text_config(const PresetShape& shape) {
  return object({{"architectures", "[\"MiniMaxM3SparseForCausalLM\"]"},
                 {"vocab_size", number(shape.vocab)},
                 {"hidden_size", number(shape.hidden)},
                 {"num_hidden_layers", number(shape.layers)},
                 {"num_attention_heads", number(shape.query_heads)},
                 {"num_key_value_heads", number(shape.kv_heads)},
                 {"head_dim", "128"},
                 {"intermediate_size", number(shape.expert_size)},
                 {"dense_intermediate_size", number(shape.dense_size)},
                 {"shared_intermediate_size", number(shape.expert_size)},
                 {"n_shared_experts", "1"},
                 {"num_local_experts", number(shape.experts)},
                 {"num_experts_per_tok", number(shape.experts_per_token)},
                 {"moe_layer_freq", layer_list(shape)},
                 {"scoring_func", "\"sigmoid\""},
                 {"use_routing_bias", "true"},
                 {"routed_scaling_factor", "2.0"},
                 {"hidden_act", "\"swigluoai\""},
                 {"swiglu_alpha", "1.702"},
                 {"swiglu_limit", "7.0"},
                 {"rms_norm_eps", "1e-06"},
                 {"use_gemma_norm", "true"},
                 {"use_qk_norm", "true"},
                 {"qk_norm_type", "\"per_head\""},
                 {"attention_output_gate", "false"},
                 {"rope_theta", "5000000"},
                 {"rotary_dim", "64"},
                 {"partial_rotary_factor", "0.5"},
                 {"max_position_embeddings", number(shape.max_positions)},
                 {"tie_word_embeddings", "false"},
                 {"sparse_attention_config", sparse_config(shape)}},
                1);
}

std::string merge_config(int depth) {
  return object({{"image_token_compression_method", "\"patch_merge\""},
                 {"spatial_merge_size", "2"},
                 {"temporal_patch_size", "2"}},
                depth);
}

std::string vision_config(const PresetShape& shape) {
  return object({{"model_type", "\"clip_vision_model\""},
                 {"hidden_size", number(shape.vision_hidden)},
                 {"num_attention_heads", number(shape.vision_heads)},
                 {"num_hidden_layers", number(shape.vision_layers)},
                 {"intermediate_size", number(shape.vision_size)},
                 {"hidden_act", "\"gelu\""},
                 {"layer_norm_eps", "1e-05"},
                 {"patch_size", "14"},
                 {"image_size", "2016"},
                 {"num_channels", "3"},
                 {"projection_dim", number(shape.hidden)},
                 {"position_embedding_type", "\"rope\""},
                 {"rope_mode", "\"3d\""},
                 {"rope_theta", "10000.0"},
                 {"vision_segment_max_frames", "4"},
                 {"img_token_compression_config", merge_config(2)}},
                1);
}

std::string config_text(const PresetShape& shape, bool is_f32) {
  const Fields top = {{"architectures", "[\"MiniMaxM3SparseForConditionalGeneration\"]"},
                      {"model_type", "\"minimax_m3_vl\""},
                      {"text_config", text_config(shape)},
                      {"vision_config", vision_config(shape)},
                      {"image_token_index", number(shape.image_token)},
                      {"video_token_index", number(shape.video_token)},
                      {"image_seq_length", "576"},
                      {"img_token_compression_config", merge_config(1)},
                      {"multimodal_projector_bias", "true"},
                      {"projector_hidden_act", "\"gelu\""},
                      {"projector_hidden_size", number(shape.hidden)},
                      {"vision_feature_layer", "-1"},
                      {"vision_feature_select_strategy", "\"full\""},
                      {"process_image_mode", "\"dynamic_res\""},
                      {"num_reward_heads", "0"},
                      {"torch_dtype", is_f32 ? "\"float32\"" : "\"bfloat16\""}};
  return object(top, 0) + "\n";
}

}  // namespace

std::vector<SyntheticPreset> synthetic_presets() {
  std::vector<SyntheticPreset> presets;
  for (const PresetShape& shape : kPresets) presets.push_back(shape.preset);
  return presets;
}

namespace {

Result<SyntheticConfig> config_of(std::string_view preset, bool is_f32, QuantFormat quant) {
  std::string names;
  for (const PresetShape& shape : kPresets) {
    names += strf("{}{}", names.empty() ? "" : ", ", shape.preset.name);
    if (shape.preset.name != preset) continue;
    SyntheticConfig texts;
    texts.config_json = config_text(shape, is_f32);
    texts.generation_config_json = object({{"do_sample", "true"},
                                           {"temperature", "1.0"},
                                           {"top_p", "0.95"},
                                           {"eos_token_id", number(shape.eos_token)}},
                                          0) +
                                   "\n";
    if (quant == QuantFormat::kNone) return texts;
    const ModelConfig plain = SPARROW_TRY(parse_config(texts.config_json, texts.generation_config_json));
    texts.config_json = SPARROW_TRY(quantised_config_json(texts.config_json, quantised(plain, quant)));
    return texts;
  }
  return Error{Errc::kInvalidArgument, strf("preset must be one of {}, got {}", names, json_quoted(preset))};
}

}  // namespace

Result<SyntheticConfig> synthetic_config(std::string_view name, MatrixFormat format) {
  if (format != MatrixFormat::kBF16) return config_of(name, format == MatrixFormat::kF32, quant_of(format));
  for (const QuantFormat quant : {QuantFormat::kMxfp4Mxfp8, QuantFormat::kMxfp8, QuantFormat::kMxfp4})
    if (const std::string suffix = strf("-{}", name_of(quant)); name.ends_with(suffix))
      return config_of(name.substr(0, name.size() - suffix.size()), /*is_f32=*/false, quant);
  return config_of(name, /*is_f32=*/false, QuantFormat::kNone);
}

}  // namespace sparrow
