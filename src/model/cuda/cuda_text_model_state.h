// SPDX-License-Identifier: Apache-2.0
// What a CudaTextModel is made of, for the files that implement it.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/cuda/cuda_text_model.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/moe/moe.h"
#include "ops/cuda/router.h"
#include "ops/cuda/rows.h"

namespace sparrow {

using Bf16 = __nv_bfloat16;
using ops::cuda::GemmShape;

// Hands out parts of one allocation; without memory it only counts.
class Arena {
 public:
  explicit Arena(std::byte* memory) : memory_(memory) {}
  template <typename T>
  T* take(int64_t count) {
    const size_t offset = used_;
    used_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
    return memory_ ? reinterpret_cast<T*>(memory_ + offset) : nullptr;
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

struct CudaTextModel::State {
  // Of the largest step; all layers share them.
  struct Activations {
    Bf16 *residual, *normed, *delta;    // [tokens, hidden]
    Bf16* next_residual;                // [hidden] of one token: a router with the norm in it writes this
                                        // while its other CTAs read the residual; the two take turns
    Bf16* qkv;                          // [tokens, qkv_rows]
    Bf16 *q, *attended;                 // [tokens, query_heads * head_dim]
    Bf16* index_q;                      // [tokens, kv_heads * head_dim]
    int32_t* selected;                  // [tokens, kv_heads, top_k]
    int32_t* expert_ids;                // [tokens, experts_per_token]
    float* expert_weights;              // [tokens, experts_per_token]
    float* logits;                      // [max_logits, vocab_rows]
    void *experts, *router, *products;  // workspaces
  };

  State(const ModelConfig& config, const DeviceWeights& weights, const CudaModelLimits& limits)
      : config(config), weights(weights), limits(limits) {}

  Activations lay_out(Arena& arena) {
    const int64_t tokens = limits.max_tokens, hidden = config.hidden_size;
    const int64_t q_dim = int64_t{weights.query_heads} * config.head_dim;
    const int64_t kv_dim = int64_t{weights.kv_heads} * config.head_dim;
    int64_t qkv_rows = 0, experts = 0;
    for (const DeviceLayer& layer : weights.layers) {
      qkv_rows = std::max<int64_t>(qkv_rows, layer.qkv_rows);
      experts = std::max(experts, ops::cuda::moe_workspace_bytes(expert_shape(layer), limits.max_tokens));
    }
    router_parts.clear();
    for (const DeviceLayer& layer : weights.layers)
      router_parts.push_back(layer.num_experts > 0 ? arena.take<Bf16>(3 * layer.num_experts * hidden)
                                                   : nullptr);
    return {
        .residual = arena.take<Bf16>(tokens * hidden),
        .normed = arena.take<Bf16>(tokens * hidden),
        .delta = arena.take<Bf16>(tokens * hidden),
        .next_residual = arena.take<Bf16>(hidden),
        .qkv = arena.take<Bf16>(tokens * qkv_rows),
        .q = arena.take<Bf16>(tokens * q_dim),
        .attended = arena.take<Bf16>(tokens * q_dim),
        .index_q = arena.take<Bf16>(tokens * kv_dim),
        .selected = arena.take<int32_t>(tokens * weights.kv_heads * config.top_k_blocks),
        .expert_ids = arena.take<int32_t>(tokens * config.experts_per_token),
        .expert_weights = arena.take<float>(tokens * config.experts_per_token),
        .logits = arena.take<float>(int64_t{limits.max_logits} * weights.vocab_rows),
        .experts = arena.take<std::byte>(experts),
        .router = arena.take<std::byte>(ops::cuda::router_workspace_bytes(router_shape(), limits.max_tokens)),
        .products = arena.take<std::byte>(ops::cuda::Gemm::workspace_bytes())};
  }

  ops::cuda::MoeShape expert_shape(const DeviceLayer& layer) const {
    return {.hidden = config.hidden_size,
            .inter = layer.inter,
            .num_experts = layer.num_experts,
            .top_k = layer.num_experts > 0 ? config.experts_per_token : 0};
  }
  ops::cuda::RouterShape router_shape() const {
    return {
        .hidden = config.hidden_size, .num_experts = config.num_experts, .top_k = config.experts_per_token};
  }
  GemmShape qkv_shape(const DeviceLayer& layer, int rows) const {
    return {.rows = rows, .n = layer.qkv_rows, .k = config.hidden_size};
  }
  GemmShape output_shape(int rows) const {
    return {.rows = rows, .n = config.hidden_size, .k = weights.query_heads * config.head_dim};
  }
  GemmShape head_shape(int rows) const {
    return {.rows = rows, .n = weights.vocab_rows, .k = config.hidden_size, .f32_out = true};
  }

  // The norm of one row is part of the router's kernel.
  bool norm_in_router(const DeviceLayer& layer, int rows) const {
    return rows == 1 && !limits.batch_invariant && layer.num_experts > 0;
  }
  // The residual takes delta in; normed is its norm.
  void add_norm(const Bf16* weight, int rows, cudaStream_t stream) const;
  void route(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void attention(const DeviceBatch& batch, const CudaKvCache& cache, int layer, cudaStream_t stream,
                 const StepObserver& observer);
  void feed_forward(const DeviceBatch& batch, int layer, cudaStream_t stream, const StepObserver& observer);
  void forward(const DeviceBatch& batch, const CudaKvCache& cache, cudaStream_t stream,
               const StepObserver& observer, std::span<const int32_t> captured_rows, Capture* capture);

  const ModelConfig& config;
  const DeviceWeights& weights;
  const CudaModelLimits limits;
  DeviceBuffer memory;
  Activations act{};
  std::unique_ptr<msa::gpu::Plan> plan;
  int64_t plan_bytes = 0;
  std::vector<Bf16*> router_parts;  // [layer] the router matrix as three bf16 terms; nullptr: no router
  std::unique_ptr<ops::cuda::Gemm> gemm;
};

}  // namespace sparrow
