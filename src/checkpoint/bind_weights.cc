// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/bind_weights.h"

#include <algorithm>
#include <utility>

namespace sparrow {
namespace {

// Makes the views. Every tensor is there with the right shape: the census has seen to it.
class Binder {
 public:
  Binder(const ModelConfig& config, const NameScheme& names, const StoredTensors& stored,
         TensorCopies& copies)
      : config_(config), names_(names), stored_(stored), copies_(copies) {}

  Weights bind() {
    Weights weights;
    weights.embed = tensor(names_.text_prefix + "model.embed_tokens.weight");
    weights.final_norm = tensor(names_.text_prefix + "model.norm.weight");
    weights.lm_head = weight(names_.text_prefix + "lm_head.weight");
    for (int i = 0; i < config_.num_layers; ++i) weights.layers.push_back(layer(i));
    return weights;
  }

 private:
  LayerWeights layer(int index) {
    const auto at = static_cast<size_t>(index);
    const std::string prefix = strf("{}model.layers.{}.", names_.text_prefix, index);
    LayerWeights w;
    w.input_norm = tensor(prefix + "input_layernorm.weight");
    w.post_attention_norm = tensor(prefix + "post_attention_layernorm.weight");
    bind_attention(prefix + "self_attn.", config_.layer_is_sparse[at] != 0, w);
    if (!config_.layer_is_moe[at]) {
      w.mlp = mlp(prefix + names_.dense_mlp + ".", "gate_proj", "up_proj", "down_proj");
      return w;
    }
    const std::string moe = prefix + "block_sparse_moe.";
    w.mlp = mlp(moe + "shared_experts.", "gate_proj", "up_proj", "down_proj");
    w.router = weight(moe + "gate.weight");
    w.router_bias = as_f32(tensor(moe + "e_score_correction_bias"));
    for (int e = 0; e < config_.num_experts; ++e)
      w.experts.push_back(mlp(strf("{}experts.{}.", moe, e), "w1", "w3", "w2"));
    return w;
  }

  void bind_attention(const std::string& prefix, bool is_sparse, LayerWeights& w) {
    w.q = weight(prefix + "q_proj.weight");
    w.k = weight(prefix + "k_proj.weight");
    w.v = weight(prefix + "v_proj.weight");
    w.o = weight(prefix + "o_proj.weight");
    w.q_norm = tensor(prefix + "q_norm.weight");
    w.k_norm = tensor(prefix + "k_norm.weight");
    if (!is_sparse) return;
    w.index_q = weight(prefix + "index_q_proj.weight");
    w.index_k = weight(prefix + "index_k_proj.weight");
    w.index_q_norm = tensor(prefix + "index_q_norm.weight");
    w.index_k_norm = tensor(prefix + "index_k_norm.weight");
  }

  ops::MlpWeights mlp(const std::string& prefix, const char* gate, const char* up, const char* down) {
    return {weight(prefix + gate + ".weight"), weight(prefix + up + ".weight"),
            weight(prefix + down + ".weight")};
  }

  ops::Weight weight(const std::string& name) {
    ops::Weight w{tensor(name), {}};
    if (w.values.dtype == DType::kF8E4M3) w.scales = tensor(scale_name(name));
    return w;
  }

  Tensor tensor(const std::string& name) {
    const StoredTensor found = stored_(name);
    const std::byte* data = found.bytes.data();
    if (reinterpret_cast<uintptr_t>(data) % size_of(found.dtype) != 0) {
      copies_.push_back(std::make_unique<std::byte[]>(found.bytes.size()));
      data = std::copy(found.bytes.begin(), found.bytes.end(), copies_.back().get()) - found.bytes.size();
    }
    return make_view(data, found.dtype, found.shape);
  }

  Tensor as_f32(const Tensor& stored) {
    if (stored.dtype == DType::kF32) return stored;
    copies_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(stored.numel()) * sizeof(float)));
    Tensor widened(copies_.back().get(), DType::kF32, {stored.numel()});
    for (int64_t i = 0; i < stored.numel(); ++i) widened.as<float>()[i] = to_float(stored.as<BFloat16>()[i]);
    return widened;
  }

  const ModelConfig& config_;
  const NameScheme& names_;
  const StoredTensors& stored_;
  TensorCopies& copies_;
};

}  // namespace

Weights bind_weights(const ModelConfig& config, const NameScheme& names, const StoredTensors& stored,
                     TensorCopies& copies) {
  return Binder(config, names, stored, copies).bind();
}

}  // namespace sparrow
