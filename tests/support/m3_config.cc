// SPDX-License-Identifier: Apache-2.0
#include "support/m3_config.h"

#include "base/check.h"

namespace sparrow::test {
namespace {

constexpr int kLayers = 60, kDenseLayers = 3;

std::string layer_list() {
  std::string out = "[";
  for (int i = 0; i < kLayers; ++i) out += strf("{}{}", i > 0 ? ", " : "", i < kDenseLayers ? 0 : 1);
  return out + "]";
}

constexpr std::string_view kConfig = R"({
  "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
  "auto_map": {"AutoConfig": "configuration_minimax_m3_vl.MiniMaxM3VLConfig"},
  "image_grid_pinpoints": "[(336, 336), (336, 672)]",
  "image_seq_length": 576,
  "image_token_index": 200025,
  "img_token_compression_config": {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2,
                                   "temporal_patch_size": 2},
  "model_type": "minimax_m3_vl",
  "multimodal_projector_bias": true,
  "num_reward_heads": 0,
  "process_image_mode": "dynamic_res",
  "projector_hidden_act": "gelu",
  "projector_hidden_size": 6144,
  "text_config": {
    "architectures": ["MiniMaxM3SparseForCausalLM"],
    "attention_output_gate": false,
    "dense_intermediate_size": 12288,
    "head_dim": 128,
    "hidden_act": "swigluoai",
    "hidden_size": 6144,
    "intermediate_size": 3072,
    "max_position_embeddings": 1048576,
    "moe_layer_freq": @MOE@,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 60,
    "num_key_value_heads": 4,
    "num_local_experts": 128,
    "num_mtp_modules": 7,
    "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 0.5,
    "qk_norm_type": "per_head",
    "rms_norm_eps": 1e-06,
    "rope_theta": 5000000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid",
    "shared_intermediate_size": 3072,
    "sparse_attention_config": {
      "sparse_attention_freq": @FREQ@,
      "sparse_block_size": 128,
      "sparse_disable_index_value": @DISABLE@,
      "sparse_index_dim": 128,
      "sparse_init_block": 0,
      "sparse_local_block": 1,
      "sparse_num_index_heads": 4,
      "sparse_score_type": "max",
      "sparse_topk_blocks": 16,
      "use_sparse_attention": true
    },
    "swiglu_alpha": 1.702,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": false,
    "use_gemma_norm": true,
    "use_qk_norm": true,
    "use_routing_bias": true,
    "vocab_size": 200064
  },
  "torch_dtype": "bfloat16",
  "transformers_version": "4.52.4",
  "video_token_index": 200026,
  "vision_config": {
    "attention_dropout": 0.0,
    "hidden_act": "gelu",
    "hidden_size": 1280,
    "image_size": 2016,
    "img_token_compression_config": {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2,
                                     "temporal_patch_size": 2},
    "intermediate_size": 5120,
    "layer_norm_eps": 1e-05,
    "model_type": "clip_vision_model",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 32,
    "patch_size": 14,
    "position_embedding_type": "rope",
    "projection_dim": 6144,
    "rope_mode": "3d",
    "rope_theta": 10000.0,
    "vision_segment_max_frames": 4,
    "vocab_size": 32000
  },
  "vision_feature_layer": -1,
  "vision_feature_select_strategy": "full"
}
)";

}  // namespace

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  SPARROW_CHECK(at != std::string::npos);
  SPARROW_CHECK(text.find(from, at + 1) == std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string m3_config_json() {
  std::string config = replaced(std::string(kConfig), "@MOE@", layer_list());
  config = replaced(config, "@FREQ@", layer_list());
  return replaced(config, "@DISABLE@", layer_list());
}

std::string m3_mxfp8_config_json() {
  return replaced(m3_config_json(), "\"text_config\": {", R"("quantization_config": {
    "activation_scheme": "dynamic",
    "ignored_layers": ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"],
    "quant_method": "mxfp8",
    "weight_block_size": [1, 32]
  },
  "text_config": {)");
}

}  // namespace sparrow::test
