// SPDX-License-Identifier: Apache-2.0
#include "model/step_buffers.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "kv/block_table.h"
#include "model/sharding.h"

namespace sparrow {

int max_logit_rows(int max_step_tokens, int max_step_sequences) {
  constexpr int kMinLogitRows = 256;
  return std::min(std::max(max_step_sequences, kMinLogitRows), max_step_tokens);
}

ops::cuda::MoeShape expert_shape(const ModelConfig& config, int num_experts, int inter) {
  return {.hidden = config.hidden_size,
          .inter = inter,
          .num_experts = num_experts,
          .top_k = num_experts > 0 ? config.experts_per_token : 0};
}

namespace {

// Of the parts that all columns of a product are cut into, those that so many columns are. Zeros may fill a
// rank's columns up, which makes no more parts of them, but they are whole tiles.
int parts_here(int64_t all, int64_t here) {
  const int64_t parts = sum_parts_of(all, ops::cuda::kColumnTile);
  const auto most = static_cast<uint64_t>(std::clamp<int64_t>(here * parts / all, 1, parts));
  return static_cast<int>(
      std::gcd(here / ops::cuda::kColumnTile, static_cast<int64_t>(std::bit_floor(most))));
}

}  // namespace

int output_parts(const ModelConfig& config, int query_heads) {
  return parts_here(int64_t{config.num_query_heads} * config.head_dim,
                    int64_t{query_heads} * config.head_dim);
}

int expert_parts(const ModelConfig& config, int num_experts, int inter, int shared_inter) {
  if (shared_inter > 0) return 1;  // ranks have other experts, and not parts of the same
  return parts_here(num_experts > 0 ? config.expert_intermediate_size : config.dense_intermediate_size,
                    inter);
}

int most_parts(const ModelConfig& config, const RankShape& rank) {
  int parts = output_parts(config, rank.query_heads);
  for (const RankShape::Layer& layer : rank.layers)
    parts = std::max(parts, expert_parts(config, layer.num_experts, layer.inter, layer.shared_inter));
  return parts;
}

ops::cuda::RouterShape router_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size, .num_experts = config.num_experts, .top_k = config.experts_per_token};
}

RankShape::Layer largest_of(const RankShape& rank) {
  RankShape::Layer most;
  for (const RankShape::Layer& layer : rank.layers) {
    most.qkv_rows = std::max(most.qkv_rows, layer.qkv_rows);
    most.num_experts = std::max(most.num_experts, layer.num_experts);
    most.inter = std::max(most.inter, layer.inter);
    most.shared_inter = std::max(most.shared_inter, layer.shared_inter);
    most.expanded_numbers = std::max(most.expanded_numbers, layer.expanded_numbers);
  }
  return most;
}

int64_t expert_bytes(const ModelConfig& config, const RankShape& rank, const GpuStepLimits& limits) {
  const int rows = limits.max_step_tokens, all_rows = rows * rank.groups;
  int64_t bytes = 0;
  const auto need = [&](int num_experts, int inter, int rows) {
    bytes = std::max(bytes, ops::cuda::moe_workspace_bytes(expert_shape(config, num_experts, inter), rows));
  };
  for (const RankShape::Layer& layer : rank.layers) {
    need(layer.num_experts, layer.inter, layer.num_experts > 0 ? all_rows : rows);
    if (layer.shared_inter > 0) need(0, layer.shared_inter, all_rows);
  }
  return bytes;
}

ops::cuda::PeerShape peer_shape(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits) {
  return {.hidden = config.hidden_size,
          .vocabulary = config.vocab_size,
          .max_rows = limits.max_step_tokens * grid.dp,
          .max_logits = limits.max_logits,
          .max_draws = limits.max_step_sequences,
          .f32_partials = limits.batch_invariant,
          .max_lists = shared_index_heads(config, grid) > 0
                           ? int64_t{limits.max_step_tokens} * grid.tp * kv_heads_per_rank(config, grid)
                           : 0,
          .peer_memory = !limits.nccl};
}

msa::gpu::PlanConfig attention_plan(const ModelConfig& config, const RankShape& rank,
                                    const GpuStepLimits& limits, const RotaryFrequencies& rotary) {
  using msa::gpu::CacheType;
  const auto cache_type = [](DType dtype) {
    return dtype == DType::kBF16 ? CacheType::kBF16 : CacheType::kE4M3;
  };
  return {.heads = {rank.query_heads, rank.kv_heads},
          .selection = {.top_k = config.top_k_blocks,
                        .local_blocks = config.local_blocks,
                        .init_blocks = config.init_blocks},
          .kv_type = cache_type(limits.kv_dtype),
          .index_type = cache_type(limits.index_dtype),
          .max_requests = limits.max_step_sequences,
          .max_queries = limits.max_step_tokens,
          .max_blocks = static_cast<int>(blocks_for_tokens(limits.max_context)),
          .rotary_dim = config.rope.rotary_dim,
          .inv_freq = rotary.inv_freq,
          .attention_factor = rotary.attention_factor,
          .batch_invariant = limits.batch_invariant,
          .index_share = rank.index_share,
          .index_heads = rank.index_heads(config)};
}

}  // namespace sparrow
