// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/rank_weights.h"

#include "checkpoint/tensor_table.h"
#include "model/sharding.h"

namespace sparrow {
namespace {

// Groups that share a scale stay whole.
int parts_of(const ModelConfig& config, int64_t columns) {
  return sum_parts_of(columns, config.quant == QuantFormat::kNone ? 1 : kScaleGroup);
}

// [begin, end) of an extent.
Tensor part_of(const Tensor& whole, const ShardRange& range) {
  if (range.axis == 0) return whole.rows_at(range.begin, range.end - range.begin);
  Tensor part = whole;
  part.data = static_cast<char*>(whole.data) + range.begin * static_cast<int64_t>(size_of(whole.dtype));
  part.shape[1] = range.end - range.begin;
  return part;
}

}  // namespace

SumParts sum_parts(const ModelConfig& config) {
  return {.heads = parts_of(config, int64_t{config.num_query_heads} * config.head_dim),
          .dense = parts_of(config, config.dense_intermediate_size),
          .experts = std::gcd(parts_of(config, config.expert_intermediate_size),
                              parts_of(config, config.shared_intermediate_size))};
}

SumParts sum_parts(const ModelConfig& config, const Grid& grid) {
  const SumParts all = sum_parts(config);
  return {.heads = all.heads / grid.tp,
          .dense = all.dense / grid.tp,
          .experts = has_whole_experts(grid) ? 1 : all.experts / grid.world()};
}

Weights rank_weights(const ModelConfig& config, const Grid& grid, const Weights& whole) {
  Weights mine = whole;
  if (grid.world() == 1) return mine;
  for (const TensorRow& row : tensor_table(config)) {
    Tensor* const view = find_tensor(mine, row.role, row.piece, row.layer, row.expert);
    if (view == nullptr || row.role == TensorRole::kEmbed || row.role == TensorRole::kIndexQ) continue;
    const ShardRange range = shard_of(config, grid, row);
    *view = range.empty() ? Tensor() : part_of(*view, range);
  }
  return mine;
}

}  // namespace sparrow
