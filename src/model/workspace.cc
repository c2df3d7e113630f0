// SPDX-License-Identifier: Apache-2.0
#include "model/workspace.h"

#include <algorithm>
#include <array>

#include "base/math.h"
#include "kv/block_table.h"
#include "model/cpu/rank_weights.h"
#include "model/device_layout.h"
#include "model/exchange/nccl_rows.h"
#include "ops/ops.h"

namespace sparrow {

int64_t Workspace::of(std::string_view name) const {
  for (const LedgerRow& row : rows)
    if (row.name == name) return row.bytes;
  SPARROW_CHECK(false);
  return 0;
}

void Workspace::add(std::string_view name, int64_t bytes_of_row) {
  rows.push_back({name, bytes_of_row});
  bytes += bytes_of_row;
}

Result<Workspace> gpu_workspace(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits,
                                int num_sms) {
  const RankShape rank = rank_shape(SPARROW_TRY(make_device_layout(config, grid)), grid);
  const RotaryFrequencies rotary = rotary_frequencies(config.rope);
  int64_t attention_bytes = 0;
  const msa::gpu::Status status =
      msa::gpu::workspace_bytes(attention_plan(config, rank, limits, rotary), num_sms, &attention_bytes);
  if (!status.ok()) return Error{Errc::kUnsupported, status.message};
  Arena arena;
  lay_out_step<BFloat16>(arena, config, rank, limits, attention_bytes);
  Workspace workspace;
  for (const Arena::Part& part : arena.parts()) workspace.add(part.name, static_cast<int64_t>(part.bytes));
  if (grid.world() > 1 && limits.nccl) {
    const NcclShape shape = nccl_shape(config, grid, limits);
    workspace.add("exchanged with other ranks", exchanged_bytes(shape));
    workspace.add("NCCL's messages", nccl_bytes(shape));
  } else if (grid.world() > 1) {
    workspace.add("shared with other ranks", ops::cuda::peer_bytes(peer_shape(config, grid, limits)));
  }
  return workspace;
}

namespace {

// The most that one operation of a step takes inside: they follow each other and use the same memory.
int64_t cpu_operation_bytes(const ModelConfig& config, const StepLimits& step, CpuIsa isa, int threads) {
  // Whatever is quantised runs on the engine of bf16.
  const MatrixFormat matrices =
      config.quant == QuantFormat::kNone ? format_of(config.dtype) : MatrixFormat::kBF16;
  const int64_t query_width = int64_t{config.num_query_heads} * config.head_dim;
  const ops::ScratchQuery all{isa, threads, config.dtype, matrices, step.max_step_tokens};
  const SumParts parts = sum_parts(config);
  ops::ScratchQuery router = all, vocabulary = all, output = all, dense_mlp = all, experts = all;
  output.parts = parts.heads, dense_mlp.parts = parts.dense, experts.parts = parts.experts;
  router.weights = MatrixFormat::kF32;
  vocabulary.weights = format_of(config.dtype);
  vocabulary.rows = std::min(step.max_step_sequences, step.max_step_tokens);
  const int64_t router_logits = step.max_step_tokens * config.num_experts * int64_t{sizeof(float)};

  // One sequence of the longest context that ends with the step.
  const auto tokens = static_cast<int32_t>(step.max_step_tokens);
  const std::array<int32_t, 2> rows = {0, tokens};
  const auto context = static_cast<int32_t>(std::max(step.max_context, step.max_step_tokens));
  const msa::Plan plan{.num_requests = 1,
                       .cu_seqlens_q = rows.data(),
                       .seq_lens = &context,
                       .max_blocks = static_cast<int>(blocks_for_tokens(context))};
  const msa::Type type = config.dtype == DType::kBF16 ? msa::Type::kBF16 : msa::Type::kF32;
  const msa::HeadShape heads{config.num_query_heads, config.num_kv_heads};
  const msa::IndexParams index{.type = type, .heads = heads, .selection = {.top_k = config.top_k_blocks}};
  const msa::AttendParams dense{.type = type, .heads = heads, .top_k = config.top_k_blocks};
  msa::AttendParams sparse = dense;
  sparse.selected = rows.data();  // any: its bytes are asked for, not its result

  return std::max({ops::linear_scratch_bytes(all, config.hidden_size),
                   ops::linear_scratch_bytes(output, query_width),
                   ops::linear_scratch_bytes(vocabulary, config.hidden_size),
                   ops::linear_scratch_bytes(router, config.hidden_size) + router_logits,
                   ops::moe_scratch_bytes(dense_mlp, {.hidden = config.hidden_size,
                                                      .routed = 0,
                                                      .shared = config.dense_intermediate_size,
                                                      .num_experts = 0,
                                                      .top_k = 0}),
                   ops::moe_scratch_bytes(experts, {.hidden = config.hidden_size,
                                                    .routed = config.expert_intermediate_size,
                                                    .shared = config.shared_intermediate_size,
                                                    .num_experts = config.num_experts,
                                                    .top_k = config.experts_per_token}),
                   ops::attention_scratch_bytes(isa, threads, plan, index, dense),
                   ops::attention_scratch_bytes(isa, threads, plan, index, sparse)});
}

}  // namespace

Workspace cpu_workspace(const ModelConfig& config, const StepLimits& step, CpuIsa isa, int threads) {
  constexpr int64_t kF32 = 4, kI32 = 4;
  const auto element = static_cast<int64_t>(size_of(config.dtype));
  const int64_t tokens = step.max_step_tokens;
  const int64_t query_width = int64_t{config.num_query_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t stream = tokens * config.hidden_size * element, queries = tokens * query_width * element;
  const int64_t keys = tokens * kv_width * element;

  constexpr int64_t kAlignment = 64;
  Workspace workspace;
  const auto add = [&](std::string_view name, std::initializer_list<int64_t> buffers) {
    int64_t bytes = 0;
    for (const int64_t buffer : buffers) bytes += round_up(buffer, kAlignment);
    workspace.add(name, bytes);
  };
  add("residual, norm, delta", {stream, stream, stream});
  add("projections", {queries, keys, keys, keys, tokens * config.head_dim * element});
  add("attention output", {queries});
  add("selected blocks", {tokens * config.num_kv_heads * config.top_k_blocks * kI32});
  add("routing", {tokens * config.experts_per_token * kI32, tokens * config.experts_per_token * kF32});
  add("rotary", {tokens * config.rope.rotary_dim / 2 * kF32, tokens * config.rope.rotary_dim / 2 * kF32});
  add("inside operations", {cpu_operation_bytes(config, step, isa, threads)});
  add("logits", {step.max_step_sequences * config.vocab_size * kF32});
  return workspace;
}

}  // namespace sparrow
