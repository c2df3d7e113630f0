// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/gpu_memory.h"

#include "engine/memory/step_layout.h"
#include "kv/kv_cache.h"
#include "model/device_layout.h"

namespace sparrow {

DrawLimits draw_limits(const ModelConfig& config, const GpuStepLimits& limits) {
  return {.max_draws = limits.max_step_sequences,
          .max_logits = limits.max_logits,
          .vocab_size = config.vocab_size,
          .num_end_ids = static_cast<int>(config.eos_token_ids.size())};
}

std::optional<TowerMemory> plan_tower(const ModelConfig& config, int64_t feature_tokens) {
  if (!config.vision || feature_tokens == 0 || !check_tower_shapes(config).ok()) return std::nullopt;
  const TowerLimits limits = tower_limits(*config.vision, feature_tokens);
  Arena weights, buffers;
  lay_out_tower_weights<BFloat16>(weights, config);
  lay_out_tower<BFloat16>(buffers, config, limits);
  TowerMemory memory{.weight_bytes = static_cast<int64_t>(weights.used())};
  for (const Arena::Part& part : buffers.parts())
    memory.workspace.add(part.name, static_cast<int64_t>(part.bytes));
  memory.workspace.add("images: features", feature_bytes(config, feature_tokens));
  memory.pinned_bytes = tower_pinned_bytes(*config.vision, limits);
  return memory;
}

Result<GpuMemory> plan_gpu_memory(const ModelConfig& config, const Grid& grid, const GpuStepLimits& limits,
                                  int num_sms) {
  const DeviceLayout layout = SPARROW_TRY(make_device_layout(config, grid));
  GpuMemory memory{.weight_bytes = static_cast<int64_t>(layout.bytes)};
  const std::optional<TowerMemory> tower = plan_tower(config, limits.feature_tokens);
  if (tower) memory.weight_bytes += tower->weight_bytes;
  memory.workspace = SPARROW_TRY(gpu_workspace(config, grid, limits, num_sms));

  const StepUploadBytes upload(limits.max_step_tokens, limits.max_step_sequences,
                               static_cast<int>(blocks_for_tokens(limits.max_context)), grid.dp);
  const auto upload_bytes = static_cast<int64_t>(upload.metadata + upload.table);
  memory.workspace.add("step metadata", upload_bytes);

  const auto draw_bytes = static_cast<int64_t>(kDrawRuns * DrawBuffer(draw_limits(config, limits)).bytes);
  memory.workspace.add("draws", draw_bytes);
  memory.pinned_bytes =
      upload_bytes + draw_bytes + (grid.world() > 1 && !limits.nccl ? ops::cuda::kPeerReportBytes : 0);
  if (tower) {
    for (const LedgerRow& row : tower->workspace.rows) memory.workspace.add(row.name, row.bytes);
    memory.pinned_bytes += tower->pinned_bytes;
  }

  Arena tables;
  lay_out_kv_tables(tables, {.num_blocks = 1,
                             .kv_heads = layout.kv_heads,
                             .head_dim = config.head_dim,
                             .dtype = limits.kv_dtype,
                             .index_dtype = limits.index_dtype,
                             .layer_is_sparse = config.layer_is_sparse});
  memory.workspace.add("cache tables", static_cast<int64_t>(tables.used()));

  memory.driver.add("captured steps", kDriverGraphBytes);
  memory.driver.add("context, kernels", kDriverContextBytes);
  if (grid.world() > 1 && limits.nccl) memory.driver.add("NCCL", kNcclOwnBytes);
  return memory;
}

Status check_fits(const GpuMemory& memory, int64_t free_bytes, std::string_view device) {
  if (memory.weight_bytes + memory.workspace.bytes <= free_bytes) return Ok{};
  const auto gib = [](int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); };
  return Error{
      Errc::kInvalidArgument,
      strf("{:.1f} GiB of weights and {:.1f} GiB of workspace do not fit into the {:.1f} GiB that are "
           "free on {}: use more GPUs, or smaller steps",
           gib(memory.weight_bytes), gib(memory.workspace.bytes), gib(free_bytes), device)};
}

}  // namespace sparrow
