// SPDX-License-Identifier: Apache-2.0
#include "model/device_layout.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/math.h"
#include "checkpoint/safetensors.h"
#include "ops/cuda/limits.h"

namespace sparrow {
namespace {

constexpr int kTile = ops::cuda::kColumnTile;
constexpr int kInterleave = 8;
constexpr int kGroups[] = {4, 8, 16};  // query heads for one KV head that the attention kernels take

// Query heads of one rank for each of its KV heads, and the next size that the kernels take (0: none).
int group_size(const ModelConfig& config, int ranks) {
  return config.num_query_heads / ranks / kv_heads_per_rank(config, ranks);
}
int padded_group_size(const ModelConfig& config, int ranks) {
  for (const int size : kGroups)
    if (size >= group_size(config, ranks)) return size;
  return 0;
}

Status check_shapes(const ModelConfig& config, int ranks) {
  if (config.hidden_size % kTile != 0)
    return Error{
        Errc::kUnsupported,
        strf("hidden_size {} is not a multiple of {}: the GPU kernels cannot run this model; the CPU can",
             config.hidden_size, kTile),
        "hidden_size"};
  const bool has_moe = std::count(config.layer_is_moe.begin(), config.layer_is_moe.end(), 1) > 0;
  const struct {
    const char* field;
    int value, most;
  } limits[] = {
      {"hidden_size", config.hidden_size, ops::cuda::kMaxHidden},
      {"vocab_size", config.vocab_size, ops::cuda::kMaxVocabulary},
      {"num_local_experts", has_moe ? config.num_experts : 0, ops::cuda::kMaxExperts},
      {"num_experts_per_tok", has_moe ? config.experts_per_token : 0, ops::cuda::kMaxExpertsPerToken}};
  for (const auto& [field, value, most] : limits)
    if (value > most)
      return Error{Errc::kUnsupported,
                   strf("{} {} is more than the {} that the GPU kernels take; the CPU can run this model",
                        field, value, most),
                   field};
  if (padded_group_size(config, ranks) == 0)
    return Error{
        Errc::kUnsupported,
        strf("num_attention_heads {}: {} query heads for one KV head are more than the {} that the GPU "
             "kernels take; the CPU can run this model",
             config.num_query_heads, group_size(config, ranks), std::end(kGroups)[-1]),
        "num_attention_heads"};
  if (has_moe && config.shared_intermediate_size != config.expert_intermediate_size)
    return Error{
        Errc::kUnsupported,
        strf("shared_intermediate_size {} differs from intermediate_size {}: the GPU kernels run the shared "
             "expert as one of the experts; the CPU can run this model",
             config.shared_intermediate_size, config.expert_intermediate_size),
        "shared_intermediate_size"};
  return Ok{};
}

// Hands out memory front to back.
class Allocator {
 public:
  size_t take(int64_t elements, DType dtype) {
    const size_t offset = bytes_;
    bytes_ +=
        static_cast<size_t>(round_up(elements * static_cast<int64_t>(size_of(dtype)), kDeviceAlignment));
    return offset;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

DeviceLayerLayout lay_out_layer(const ModelConfig& config, const ParallelConfig& parallel,
                                const DeviceLayout& layout, size_t index, Allocator& memory) {
  const int64_t hidden = config.hidden_size, dim = config.head_dim;
  const bool is_sparse = config.layer_is_sparse[index] != 0, is_moe = config.layer_is_moe[index] != 0;
  const auto bf16 = [&](int64_t elements) { return memory.take(elements, DType::kBF16); };
  DeviceLayerLayout layer;
  layer.input_norm = bf16(hidden);
  layer.post_attention_norm = bf16(hidden);
  layer.q_norm = bf16(dim);
  layer.k_norm = bf16(dim);
  int heads = layout.query_heads + 2 * layout.kv_heads;
  if (is_sparse) {
    layer.index_q_norm = bf16(dim);
    layer.index_k_norm = bf16(dim);
    heads += layout.kv_heads + 1;
  }
  layer.qkv_rows = heads * config.head_dim;
  layer.qkv = bf16(layer.qkv_rows * hidden);
  layer.o = bf16(hidden * layout.query_heads * dim);
  if (is_moe) {
    layer.num_experts = config.num_experts;
    layer.router = memory.take(config.num_experts * hidden, DType::kF32);
    layer.router_bias = memory.take(config.num_experts, DType::kF32);
  }
  const int inter = is_moe ? config.expert_intermediate_size : config.dense_intermediate_size;
  layer.inter = static_cast<int>(round_up(inter / parallel.size, kTile));
  const int64_t experts = layer.num_experts + 1;
  layer.gate_up = bf16(experts * 2 * layer.inter * hidden);
  layer.down = bf16(experts * hidden * layer.inter);
  return layer;
}

// A tensor's name in its layer, or in the model.
std::string_view role_name(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbed:
      return "model.embed_tokens.weight";
    case TensorRole::kFinalNorm:
      return "model.norm.weight";
    case TensorRole::kLmHead:
      return "lm_head.weight";
    case TensorRole::kInputNorm:
      return "input_layernorm.weight";
    case TensorRole::kPostAttentionNorm:
      return "post_attention_layernorm.weight";
    case TensorRole::kQNorm:
      return "self_attn.q_norm.weight";
    case TensorRole::kKNorm:
      return "self_attn.k_norm.weight";
    case TensorRole::kIndexQNorm:
      return "self_attn.index_q_norm.weight";
    case TensorRole::kIndexKNorm:
      return "self_attn.index_k_norm.weight";
    case TensorRole::kQ:
      return "self_attn.q_proj.weight";
    case TensorRole::kK:
      return "self_attn.k_proj.weight";
    case TensorRole::kV:
      return "self_attn.v_proj.weight";
    case TensorRole::kIndexQ:
      return "self_attn.index_q_proj.weight";
    case TensorRole::kIndexK:
      return "self_attn.index_k_proj.weight";
    case TensorRole::kO:
      return "self_attn.o_proj.weight";
    case TensorRole::kRouter:
      return "block_sparse_moe.gate.weight";
    case TensorRole::kRouterBias:
      return "block_sparse_moe.e_score_correction_bias";
    case TensorRole::kGate:
      return "gate_proj.weight";
    case TensorRole::kUp:
      return "up_proj.weight";
    case TensorRole::kDown:
      return "down_proj.weight";
  }
  return "";
}

// The whole name, in the spelling of the released checkpoints.
std::string tensor_name(TensorRole role, int layer, int expert, int num_experts) {
  if (layer < 0) return strf("language_model.{}", role_name(role));
  const std::string prefix = strf("language_model.model.layers.{}.", layer);
  if (expert < 0) return strf("{}{}", prefix, role_name(role));
  if (num_experts == 0) return strf("{}mlp.{}", prefix, role_name(role));
  if (expert == num_experts) return strf("{}block_sparse_moe.shared_experts.{}", prefix, role_name(role));
  const char* const routed = role == TensorRole::kGate ? "w1" : role == TensorRole::kUp ? "w3" : "w2";
  return strf("{}block_sparse_moe.experts.{}.{}.weight", prefix, expert, routed);
}

// Makes the parts of a model, layer by layer.
class PartList {
 public:
  PartList(const ModelConfig& config, const ParallelConfig& parallel, const DeviceLayout& layout)
      : config_(config), parallel_(parallel), layout_(layout) {}

  std::vector<DevicePart> take() {
    const int64_t hidden = config_.hidden_size;
    matrix(TensorRole::kEmbed, config_.vocab_size, hidden, layout_.embed);
    for (layer_ = 0; layer_ < config_.num_layers; ++layer_) {
      const DeviceLayerLayout& at = layout_.layers[static_cast<size_t>(layer_)];
      vector(TensorRole::kInputNorm, hidden, at.input_norm);
      vector(TensorRole::kPostAttentionNorm, hidden, at.post_attention_norm);
      add_attention(at);
      add_feed_forward(at);
    }
    layer_ = -1;
    vector(TensorRole::kFinalNorm, hidden, layout_.final_norm);
    matrix(TensorRole::kLmHead, config_.vocab_size, hidden, layout_.lm_head);
    return std::move(parts_);
  }

 private:
  // Rows as they come, one below the other: the caller changes what is different.
  DevicePart& matrix(TensorRole role, int64_t rows, int64_t cols, size_t offset) {
    const int num_experts = layer_ < 0 ? 0 : layout_.layers[static_cast<size_t>(layer_)].num_experts;
    const TensorSpec spec = {tensor_name(role, layer_, expert_, num_experts), DType::kBF16, {rows, cols}};
    const ShardRange range = shard_of(config_, parallel_, spec);
    DevicePart part = {.name = spec.name,
                       .role = role,
                       .layer = layer_,
                       .expert = expert_,
                       .whole_rows = rows,
                       .whole_cols = cols,
                       .num_rows = rows,
                       .num_cols = cols,
                       .offset = offset};
    (range.axis == 0 ? part.first_row : part.first_col) = range.begin;
    (range.axis == 0 ? part.num_rows : part.num_cols) = range.end - range.begin;
    part.row_stride = part.num_cols;
    parts_.push_back(std::move(part));
    return parts_.back();
  }
  void vector(TensorRole role, int64_t size, size_t offset) { matrix(role, 1, size, offset); }

  void add_attention(const DeviceLayerLayout& at) {
    const int64_t hidden = config_.hidden_size, dim = config_.head_dim;
    const int64_t q_rows = config_.num_query_heads * dim, kv_rows = config_.num_kv_heads * dim;
    const size_t row_bytes = static_cast<size_t>(hidden) * size_of(DType::kBF16);
    const DeviceRuns groups = {group_size(config_, parallel_.size) * dim,
                               padded_group_size(config_, parallel_.size) * dim};
    vector(TensorRole::kQNorm, dim, at.q_norm);
    vector(TensorRole::kKNorm, dim, at.k_norm);
    matrix(TensorRole::kQ, q_rows, hidden, at.qkv).rows = groups;
    size_t offset = at.qkv + row_bytes * static_cast<size_t>(layout_.query_heads * dim);
    const size_t kv_bytes = row_bytes * static_cast<size_t>(layout_.kv_heads * dim);
    matrix(TensorRole::kK, kv_rows, hidden, offset);
    matrix(TensorRole::kV, kv_rows, hidden, offset += kv_bytes);
    if (at.index_q_norm != DeviceLayerLayout::kAbsent) {
      matrix(TensorRole::kIndexQ, kv_rows, hidden, offset += kv_bytes);
      matrix(TensorRole::kIndexK, dim, hidden, offset += kv_bytes);
      vector(TensorRole::kIndexQNorm, dim, at.index_q_norm);
      vector(TensorRole::kIndexKNorm, dim, at.index_k_norm);
    }
    DevicePart& o = matrix(TensorRole::kO, hidden, q_rows, at.o);
    o.columns = groups;
    o.row_stride = layout_.query_heads * dim;
  }

  void add_feed_forward(const DeviceLayerLayout& at) {
    const int64_t hidden = config_.hidden_size;
    int64_t channels = config_.dense_intermediate_size;
    if (at.num_experts > 0) {
      channels = config_.expert_intermediate_size;
      matrix(TensorRole::kRouter, config_.num_experts, hidden, at.router).dtype = DType::kF32;
      vector(TensorRole::kRouterBias, config_.num_experts, at.router_bias);
      parts_.back().dtype = DType::kF32;
    }
    const size_t down_bytes = static_cast<size_t>(hidden * at.inter) * size_of(DType::kBF16);
    const size_t eight_rows = static_cast<size_t>(kInterleave * hidden) * size_of(DType::kBF16);
    for (expert_ = 0; expert_ <= at.num_experts; ++expert_) {
      const auto e = static_cast<size_t>(expert_);
      const size_t gate = at.gate_up + e * 2 * down_bytes;
      matrix(TensorRole::kGate, channels, hidden, gate).rows = {kInterleave, 2 * kInterleave};
      matrix(TensorRole::kUp, channels, hidden, gate + eight_rows).rows = {kInterleave, 2 * kInterleave};
      matrix(TensorRole::kDown, hidden, channels, at.down + e * down_bytes).row_stride = at.inter;
    }
    expert_ = -1;
  }

  const ModelConfig& config_;
  const ParallelConfig& parallel_;
  const DeviceLayout& layout_;
  int layer_ = -1, expert_ = -1;
  std::vector<DevicePart> parts_;
};

}  // namespace

Result<DeviceLayout> make_device_layout(const ModelConfig& config, const ParallelConfig& parallel) {
  SPARROW_TRY(validate(config, parallel));
  SPARROW_TRY(check_shapes(config, parallel.size));
  DeviceLayout layout;
  layout.kv_heads = kv_heads_per_rank(config, parallel.size);
  layout.query_heads = layout.kv_heads * padded_group_size(config, parallel.size);
  layout.vocab_rows = config.vocab_size / parallel.size;
  layout.first_vocab_row = layout.vocab_rows * parallel.rank;
  Allocator memory;
  const int64_t vocab_elements = int64_t{layout.vocab_rows} * config.hidden_size;
  layout.embed = memory.take(vocab_elements, DType::kBF16);
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i)
    layout.layers.push_back(lay_out_layer(config, parallel, layout, i, memory));
  layout.final_norm = memory.take(config.hidden_size, DType::kBF16);
  layout.lm_head = memory.take(vocab_elements, DType::kBF16);
  layout.bytes = memory.bytes();
  return layout;
}

Result<size_t> device_weight_bytes(const ModelConfig& config, const ParallelConfig& parallel) {
  return SPARROW_TRY(make_device_layout(config, parallel)).bytes;
}

std::vector<DevicePart> device_parts(const ModelConfig& config, const ParallelConfig& parallel,
                                     const DeviceLayout& layout) {
  return PartList(config, parallel, layout).take();
}

}  // namespace sparrow
