// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/census.h"

#include <utility>

namespace sparrow {
namespace {

// Appends specs; the methods are the kinds of tensors a checkpoint holds.
class SpecList {
 public:
  explicit SpecList(const ModelConfig& config) : config_(config) {}

  void vector(std::string name, int64_t size) { add(std::move(name), config_.dtype, {size}); }
  void matrix(std::string name, int64_t out, int64_t in) { add(std::move(name), config_.dtype, {out, in}); }
  void f32(std::string name, std::vector<int64_t> shape) {
    add(std::move(name), DType::kF32, std::move(shape));
  }

  // A matrix that quantised checkpoints store with scales.
  void linear(const std::string& name, int64_t out, int64_t in) {
    if (config_.quant == QuantFormat::kNone) return matrix(name, out, in);
    add(name, DType::kF8E4M3, {out, in});
    add(scale_name(name), DType::kU8, {out, in / 32});
  }

  // Vision layers have biases.
  void biased(const std::string& prefix, int64_t out, int64_t in) {
    matrix(prefix + ".weight", out, in);
    vector(prefix + ".bias", out);
  }
  void layer_norm(const std::string& prefix, int64_t size) {
    vector(prefix + ".weight", size);
    vector(prefix + ".bias", size);
  }

  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  void add(std::string name, DType dtype, std::vector<int64_t> shape) {
    specs_.push_back({std::move(name), dtype, std::move(shape)});
  }

  const ModelConfig& config_;
  std::vector<TensorSpec> specs_;
};

void add_attention(const ModelConfig& config, const std::string& layer, bool is_sparse, SpecList& list) {
  const int64_t hidden = config.hidden_size, dim = config.head_dim;
  const int64_t q = config.num_query_heads * dim, kv = config.num_kv_heads * dim;
  const std::string attention = layer + "self_attn.";
  list.linear(attention + "q_proj.weight", q, hidden);
  list.linear(attention + "k_proj.weight", kv, hidden);
  list.linear(attention + "v_proj.weight", kv, hidden);
  list.linear(attention + "o_proj.weight", hidden, q);
  list.vector(attention + "q_norm.weight", dim);
  list.vector(attention + "k_norm.weight", dim);
  if (!is_sparse) return;
  // One index head for each KV head, and one index key for all of them.
  list.linear(attention + "index_q_proj.weight", kv, hidden);
  list.linear(attention + "index_k_proj.weight", dim, hidden);
  list.vector(attention + "index_q_norm.weight", dim);
  list.vector(attention + "index_k_norm.weight", dim);
}

void add_mlp(const std::string& prefix, const char* const (&names)[3], int64_t hidden, int64_t inner,
             SpecList& list) {
  list.linear(prefix + names[0] + ".weight", inner, hidden);
  list.linear(prefix + names[1] + ".weight", inner, hidden);
  list.linear(prefix + names[2] + ".weight", hidden, inner);
}

void add_text(const ModelConfig& config, const NameScheme& names, SpecList& list) {
  constexpr const char* kGateUpDown[3] = {"gate_proj", "up_proj", "down_proj"};
  constexpr const char* kExpert[3] = {"w1", "w3", "w2"};
  const int64_t hidden = config.hidden_size;
  list.matrix(names.text_prefix + "model.embed_tokens.weight", config.vocab_size, hidden);
  for (int i = 0; i < config.num_layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const std::string layer = strf("{}model.layers.{}.", names.text_prefix, i);
    list.vector(layer + "input_layernorm.weight", hidden);
    list.vector(layer + "post_attention_layernorm.weight", hidden);
    add_attention(config, layer, config.layer_is_sparse[at] != 0, list);
    if (!config.layer_is_moe[at]) {
      add_mlp(layer + names.dense_mlp + ".", kGateUpDown, hidden, config.dense_intermediate_size, list);
      continue;
    }
    const std::string moe = layer + "block_sparse_moe.";
    list.f32(moe + "gate.weight", {config.num_experts, hidden});
    list.f32(moe + "e_score_correction_bias", {config.num_experts});
    for (int e = 0; e < config.num_experts; ++e)
      add_mlp(strf("{}experts.{}.", moe, e), kExpert, hidden, config.expert_intermediate_size, list);
    add_mlp(moe + "shared_experts.", kGateUpDown, hidden, config.shared_intermediate_size, list);
  }
  list.vector(names.text_prefix + "model.norm.weight", hidden);
  list.matrix(names.text_prefix + "lm_head.weight", config.vocab_size, hidden);
}

void add_vision(const VisionConfig& vision, int64_t text_hidden, SpecList& list) {
  const std::string tower = "vision_tower.vision_model.";
  const int64_t hidden = vision.hidden_size, projector = vision.projector_hidden_size;
  const int64_t merged = text_hidden * vision.spatial_merge_size * vision.spatial_merge_size;
  list.f32(tower + "embeddings.patch_embedding.weight",
           {hidden, vision.num_channels, vision.temporal_patch_size, vision.patch_size, vision.patch_size});
  list.layer_norm(tower + "pre_layrnorm", hidden);
  for (int i = 0; i < vision.num_layers; ++i) {
    const std::string layer = strf("{}encoder.layers.{}.", tower, i);
    list.layer_norm(layer + "layer_norm1", hidden);
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      list.biased(layer + "self_attn." + name, hidden, hidden);
    list.layer_norm(layer + "layer_norm2", hidden);
    list.biased(layer + "mlp.fc1", vision.intermediate_size, hidden);
    list.biased(layer + "mlp.fc2", hidden, vision.intermediate_size);
  }
  list.biased("multi_modal_projector.linear_1", projector, hidden);
  list.biased("multi_modal_projector.linear_2", text_hidden, projector);
  list.biased("patch_merge_mlp.linear_1", projector, merged);
  list.biased("patch_merge_mlp.linear_2", text_hidden, projector);
}

}  // namespace

std::string scale_name(const std::string& weight_name) {
  return weight_name + "_scale_inv";
}

std::vector<TensorSpec> expected_tensors(const ModelConfig& config, const NameScheme& names) {
  SpecList list(config);
  add_text(config, names, list);
  if (config.vision) add_vision(*config.vision, config.hidden_size, list);
  return list.take();
}

}  // namespace sparrow
