// SPDX-License-Identifier: Apache-2.0
// StepBuffers: what a step of the text model keeps on a GPU beside weights and cache, for the largest step.
// CudaTextModel lays them out in its memory, and a plan of the memory counts them with the same function.
// Host arithmetic only: Bf16 is __nv_bfloat16 where there is CUDA, and BFloat16 where one only counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "config/config.h"
#include "device/arena.h"
#include "model/cuda/rank_shape.h"
#include "model/cuda/step_limits.h"
#include "model/rotary.h"
#include "ops/cuda/comm/peer_buffers.h"
#include "ops/cuda/mx/fold.h"
#include "ops/cuda/parts/part_tree.h"
#include "ops/gpu_workspace.h"

namespace sparrow {

ops::cuda::MoeShape expert_shape(const ModelConfig& config, int num_experts, int inter);
ops::cuda::RouterShape router_shape(const ModelConfig& config);
// The largest of all layers in each respect; and the workspace of the one whose experts need most.
RankShape::Layer largest_of(const RankShape& rank);
int64_t expert_bytes(const ModelConfig& config, const RankShape& rank, const GpuStepLimits& limits);

// Batch-invariant steps sum the products that ranks share in the parts of model/sharding.h. How many of them
// a rank has, of the output product and of a layer's experts (whole ones are not cut), and at most.
int output_parts(const ModelConfig& config, int query_heads);
int expert_parts(const ModelConfig& config, int num_experts, int inter, int shared_inter = 0);
int most_parts(const ModelConfig& config, const RankShape& rank);

// What ranks of several share, or exchange over NCCL.
ops::cuda::PeerShape peer_shape(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits);

// The attention's plan, which refers to the frequencies.
msa::gpu::PlanConfig attention_plan(const ModelConfig& config, const RankShape& rank,
                                    const GpuStepLimits& limits, const RotaryFrequencies& rotary);

// All layers share them.
template <typename Bf16>
struct StepBuffers {
  Bf16 *residual, *normed, *delta;  // [tokens, hidden]; the last two of several ranks are in PeerBuffers
  // Batch-invariant, instead of delta: what it is the sum of, [tokens, hidden] each; of several ranks the
  // first is in PeerBuffers.
  float* sums[ops::cuda::kMaxTreeSlots];
  Bf16* next_residual;              // [hidden] of one token: a router with the norm in it writes this
                                    // while its other CTAs read the residual; the two take turns
  Bf16* qkv;                        // [tokens, qkv_rows]
  Bf16 *q, *index_q;                // [tokens, query_heads * head_dim], [tokens, index heads * head_dim]
  uint64_t* candidates;             // [tokens, index heads, kCandidates] where ranks share the index
  Bf16* attended;                   // [tokens, query_heads * head_dim]
  int32_t* selected;                // [tokens, kv_heads, top_k]
  int32_t* expert_ids;              // [all groups' tokens, experts_per_token]
  float* expert_weights;            // [all groups' tokens, experts_per_token]
  Bf16* shared;                     // [all groups' tokens, hidden] of a shared expert that is apart
  float* logits;                    // [max_logits, vocab_rows]
  std::vector<Bf16*> router_parts;  // [layer] the router matrix as three bf16 terms; nullptr: no router
  void *attention, *experts, *router, *products;  // workspaces
  ops::cuda::E4m3Rows rounded;                    // what the next product reads, where it reads e4m3
  Bf16* expanded;  // of one layer's q/k/v or output matrix; nullptr: none is quantised
};

// `attention_bytes`: of the attention's plan.
template <typename Bf16>
StepBuffers<Bf16> lay_out_step(Arena& arena, const ModelConfig& config, const RankShape& rank,
                               const GpuStepLimits& limits, int64_t attention_bytes) {
  const int64_t tokens = limits.max_step_tokens, hidden = config.hidden_size, dim = config.head_dim;
  const int64_t all_tokens = tokens * rank.groups;  // experts run the rows of all groups
  const RankShape::Layer most = largest_of(rank);
  const int64_t index_heads = rank.index_heads(config);
  StepBuffers<Bf16> at{};
  arena.begin("residual, norm, delta");
  at.residual = arena.take<Bf16>(tokens * hidden);
  if (rank.ranks == 1) {
    at.normed = arena.take<Bf16>(tokens * hidden);
    if (!limits.batch_invariant) at.delta = arena.take<Bf16>(tokens * hidden);
  }
  at.next_residual = arena.take<Bf16>(hidden);
  if (limits.batch_invariant) {
    arena.begin("sums in parts");
    for (int slot = rank.ranks == 1 ? 0 : 1; slot < ops::cuda::tree_slots(most_parts(config, rank)); ++slot)
      at.sums[slot] = arena.take<float>(all_tokens * hidden);
  }
  arena.begin("projections");
  at.qkv = arena.take<Bf16>(tokens * most.qkv_rows);
  at.q = arena.take<Bf16>(tokens * rank.query_heads * dim);
  at.index_q = arena.take<Bf16>(tokens * index_heads * dim);
  arena.begin("attention output");
  at.attended = arena.take<Bf16>(tokens * rank.query_heads * dim);
  arena.begin("selected blocks");
  if (rank.index_share.count > 1)
    at.candidates = arena.take<uint64_t>(tokens * index_heads * ops::cuda::kListWords);
  at.selected = arena.take<int32_t>(tokens * rank.kv_heads * config.top_k_blocks);
  arena.begin("attention kernels");
  at.attention = arena.take<std::byte>(attention_bytes);
  arena.begin("routing");
  at.expert_ids = arena.take<int32_t>(all_tokens * config.experts_per_token);
  at.expert_weights = arena.take<float>(all_tokens * config.experts_per_token);
  at.router = arena.take<std::byte>(
      ops::cuda::router_workspace_bytes(router_shape(config), static_cast<int>(all_tokens)));
  arena.begin("router as bf16 terms");
  for (const RankShape::Layer& layer : rank.layers)
    at.router_parts.push_back(layer.num_experts > 0 ? arena.take<Bf16>(3 * config.num_experts * hidden)
                                                    : nullptr);
  arena.begin("experts");
  at.experts = arena.take<std::byte>(expert_bytes(config, rank, limits));
  if (most.shared_inter > 0) at.shared = arena.take<Bf16>(all_tokens * hidden);
  if (limits.e4m3_tokens) {
    arena.begin("rounded rows");
    at.rounded.codes = arena.take<uint8_t>(std::max(all_tokens * hidden, tokens * rank.query_heads * dim));
    at.rounded.scales = arena.take<float>(all_tokens);
  }
  arena.begin("logits");
  at.logits = arena.take<float>(int64_t{limits.max_logits} * rank.vocab_rows);
  arena.begin("matrix products");
  at.products = arena.take<std::byte>(ops::cuda::kProductWorkspaceBytes);
  if (most.expanded_numbers > 0) {
    arena.begin("expanded matrix");
    at.expanded = arena.take<Bf16>(most.expanded_numbers);
  }
  return at;
}

}  // namespace sparrow
