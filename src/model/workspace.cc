// SPDX-License-Identifier: Apache-2.0
#include "model/workspace.h"

#include <algorithm>
#include <array>

#include "kv/block_table.h"
#include "model/device_layout.h"
#include "ops/ops.h"

namespace sparrow {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Adds buffers, each at its alignment.
class Rows {
 public:
  explicit Rows(int64_t alignment) : alignment_(alignment) {}

  void add(std::string_view name, std::initializer_list<int64_t> buffers) {
    int64_t bytes = 0;
    for (const int64_t buffer : buffers) bytes += round_up(buffer, alignment_);
    workspace_.rows.push_back({name, bytes});
    workspace_.bytes += bytes;
  }
  Workspace take() { return std::move(workspace_); }

 private:
  int64_t alignment_;
  Workspace workspace_;
};

}  // namespace

int64_t Workspace::of(std::string_view name) const {
  for (const LedgerRow& row : rows)
    if (row.name == name) return row.bytes;
  SPARROW_CHECK(false);
  return 0;
}

int64_t gpu_attention_bytes(const ModelConfig& config, int query_heads, int kv_heads,
                            const StepLimits& step) {
  constexpr int64_t kSms = 132, kScanRows = 32, kScanUnits = 4, kListTile = 256, kListLength = 16,
                    kListBlocks = 128, kListWindow = 1024, kDensePartials = 1024, kDensePartBlocks = 8,
                    kTileRows = 128;
  const int64_t tokens = step.max_tokens, blocks = blocks_for_tokens(step.max_context);
  const int64_t group = query_heads / kv_heads, top_k = config.top_k_blocks;
  // Index, few queries for each request: all scores, four for each block. More queries: one score for each of
  // few blocks, or the best 16 blocks of each row of a tile, a list for each window of blocks and each
  // processor that shares the tile.
  const int64_t scan_queries = std::max<int64_t>(kScanRows / kv_heads, 1);
  const int64_t scan =
      4 * kScanUnits * std::min(tokens, step.max_sequences * scan_queries) * kv_heads * blocks;
  const int64_t tiles = tokens * kv_heads / kListTile + step.max_sequences + kSms;
  const int64_t lists = blocks <= kListBlocks ? 4 * tokens * kv_heads * blocks
                                              : 8 * kListLength * kListTile * tiles *
                                                    ((blocks + kListWindow - 1) / kListWindow);
  // Sparse attention by block: sums of every (query, selected block), and its work items.
  const int64_t pairs = tokens * kv_heads * top_k;
  const int64_t sparse = pairs * (group * (int64_t{2} * config.head_dim + 8) + 16 + 4 + 16);
  // Dense attention: sums of tiles whose context is split.
  const int64_t parts = (tokens * group / kTileRows + step.max_sequences + 1) * kv_heads *
                        ((blocks + kDensePartBlocks - 1) / kDensePartBlocks);
  const int64_t dense = std::min(kDensePartials, parts) * kTileRows * (4 * config.head_dim + 8);
  return std::max(scan, lists) + std::max(sparse, dense) + 4 * config.rope.rotary_dim * tokens;
}

Result<Workspace> gpu_workspace(const ModelConfig& config, const ParallelConfig& parallel,
                                const StepLimits& step) {
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, parallel));
  constexpr int64_t kBf16 = 2, kF32 = 4, kI32 = 4, kMinLogitRows = 256;
  constexpr int64_t kMiB = 1 << 20;
  // What the matrix library is given, what is set aside for captured steps, and about what CUDA takes itself.
  constexpr int64_t kProductBytes = 32 * kMiB, kGraphBytes = 512 * kMiB, kContextBytes = 512 * kMiB;
  const int64_t tokens = step.max_tokens, hidden = config.hidden_size, dim = config.head_dim;
  int64_t qkv_rows = 0, experts = 0, router_parts = 0;
  for (const DeviceLayerLayout& layer : layout.layers) {
    qkv_rows = std::max<int64_t>(qkv_rows, layer.qkv_rows);
    // The shared expert runs as one more of every token's; a dense feed-forward as the only one, straight
    // into the output.
    const int64_t channels = tokens * layer.inter * kBf16;
    const int64_t places = config.experts_per_token + 1;
    experts =
        std::max(experts, layer.num_experts > 0 ? places * (channels + tokens * hidden * kBf16) : channels);
    router_parts += 3 * layer.num_experts * hidden * kBf16;
  }
  const int64_t chosen = tokens * config.experts_per_token;
  const int64_t query_width = layout.query_heads * dim, kv_width = layout.kv_heads * dim;
  const int64_t logit_rows = std::min(std::max(step.max_sequences, kMinLogitRows), tokens);

  Rows rows(static_cast<int64_t>(kDeviceAlignment));
  const int64_t stream = tokens * hidden * kBf16;
  rows.add("residual, norm, delta", {stream, stream, stream});
  rows.add("projections",
           {tokens * qkv_rows * kBf16, tokens * query_width * kBf16, tokens * kv_width * kBf16});
  rows.add("attention output", {tokens * query_width * kBf16});
  rows.add("selected blocks", {tokens * layout.kv_heads * config.top_k_blocks * kI32});
  rows.add("attention kernels", {gpu_attention_bytes(config, layout.query_heads, layout.kv_heads, step)});
  rows.add("routing", {tokens * config.num_experts * kF32, chosen * kI32, chosen * kF32});
  rows.add("router as bf16 terms", {router_parts});
  rows.add("experts", {experts});
  rows.add("logits", {logit_rows * layout.vocab_rows * kF32});
  rows.add("matrix products", {kProductBytes});
  rows.add("step metadata", {tokens * 24 + 2 * step.max_sequences * kI32,
                             step.max_sequences * blocks_for_tokens(step.max_context) * kI32});
  rows.add("CUDA graphs, context", {kGraphBytes, kContextBytes});
  return rows.take();
}

namespace {

// The most that one operation of a step takes inside: they follow each other and use the same memory.
int64_t cpu_operation_bytes(const ModelConfig& config, const StepLimits& step, CpuIsa isa, int threads) {
  const DType matrices = config.quant == QuantFormat::kMxfp8 ? DType::kF8E4M3 : config.dtype;
  const int64_t query_width = int64_t{config.num_query_heads} * config.head_dim;
  const ops::ScratchQuery all{isa, threads, config.dtype, matrices, step.max_tokens};
  ops::ScratchQuery router = all, vocabulary = all;
  router.weights = DType::kF32;
  vocabulary.weights = config.dtype;
  vocabulary.rows = std::min(step.max_sequences, step.max_tokens);
  const int64_t router_logits = step.max_tokens * config.num_experts * int64_t{sizeof(float)};

  // One sequence of the longest context that ends with the step.
  const auto tokens = static_cast<int32_t>(step.max_tokens);
  const std::array<int32_t, 2> rows = {0, tokens};
  const auto context = static_cast<int32_t>(std::max(step.max_context, step.max_tokens));
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
                   ops::linear_scratch_bytes(all, query_width),
                   ops::linear_scratch_bytes(vocabulary, config.hidden_size),
                   ops::linear_scratch_bytes(router, config.hidden_size) + router_logits,
                   ops::moe_scratch_bytes(all, {.hidden = config.hidden_size,
                                                .routed = 0,
                                                .shared = config.dense_intermediate_size,
                                                .num_experts = 0,
                                                .top_k = 0}),
                   ops::moe_scratch_bytes(all, {.hidden = config.hidden_size,
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
  const int64_t tokens = step.max_tokens;
  const int64_t query_width = int64_t{config.num_query_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t stream = tokens * config.hidden_size * element, queries = tokens * query_width * element;
  const int64_t keys = tokens * kv_width * element;

  Rows rows(64);
  rows.add("residual, norm, delta", {stream, stream, stream});
  rows.add("projections", {queries, keys, keys, keys, tokens * config.head_dim * element});
  rows.add("attention output", {queries});
  rows.add("selected blocks", {tokens * config.num_kv_heads * config.top_k_blocks * kI32});
  rows.add("routing", {tokens * config.experts_per_token * kI32, tokens * config.experts_per_token * kF32});
  rows.add("rotary",
           {tokens * config.rope.rotary_dim / 2 * kF32, tokens * config.rope.rotary_dim / 2 * kF32});
  rows.add("inside operations", {cpu_operation_bytes(config, step, isa, threads)});
  rows.add("logits", {step.max_sequences * config.vocab_size * kF32});
  return rows.take();
}

}  // namespace sparrow
