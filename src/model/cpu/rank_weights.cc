// SPDX-License-Identifier: Apache-2.0
#include "model/cpu/rank_weights.h"

#include <algorithm>

#include "checkpoint/mx/mx_groups.h"
#include "checkpoint/tensor_table.h"
#include "model/sharding.h"

namespace sparrow {
namespace {

// [begin, end) of an extent.
Tensor part_of(const Tensor& whole, const ShardRange& range) {
  if (range.axis == 0) return whole.rows_at(range.begin, range.end - range.begin);
  Tensor part = whole;
  part.data = static_cast<char*>(whole.data) + range.begin * static_cast<int64_t>(size_of(whole.dtype));
  part.shape[1] = range.end - range.begin;
  return part;
}

bool has_cut_groups(const TensorRow& row) {
  return row.cut == TensorCut::kColumns && row.piece == TensorPiece::kValues && is_mx(row.format) &&
         row.columns() % (kSumParts * kScaleGroup) != 0;
}

std::unique_ptr<BFloat16[]> expanded(const ops::Weight& weight) {
  const int64_t out = weight.out(), in = weight.in();
  auto matrix = std::make_unique<BFloat16[]>(static_cast<size_t>(out * in));
  std::vector<float> numbers(static_cast<size_t>(in));
  for (int64_t o = 0; o < out; ++o) {
    const int64_t first = o * weight.values.row_stride * static_cast<int64_t>(size_of(weight.values.dtype));
    expand_groups(weight.format(), static_cast<const uint8_t*>(weight.values.data) + first,
                  weight.scales.row<uint8_t>(o), numbers);
    std::ranges::transform(numbers, matrix.get() + o * in, [](float x) { return to_bf16(x); });
  }
  return matrix;
}

}  // namespace

SumParts sum_parts(const ModelConfig& config) {
  return {.heads = sum_parts_of(int64_t{config.num_query_heads} * config.head_dim, 1),
          .dense = sum_parts_of(config.dense_intermediate_size, 1),
          .experts = std::gcd(sum_parts_of(config.expert_intermediate_size, 1),
                              sum_parts_of(config.shared_intermediate_size, 1))};
}

SumParts sum_parts(const ModelConfig& config, const Grid& grid) {
  const SumParts all = sum_parts(config);
  return {.heads = all.heads / grid.tp,
          .dense = all.dense / grid.tp,
          .experts = has_whole_experts(grid) ? 1 : all.experts / grid.world()};
}

Weights rank_weights(const ModelConfig& config, const Grid& grid, const Weights& whole,
                     ExpandedMatrices& matrices) {
  Weights mine = whole;
  const std::vector<TensorRow> table = tensor_table(config);
  for (const TensorRow& row : table) {
    Tensor* const view = find_tensor(mine, row.role, row.piece, row.layer, row.expert);
    if (view == nullptr || row.role == TensorRole::kEmbed || row.role == TensorRole::kIndexQ) continue;
    const ShardRange range = shard_of(config, grid, row);
    *view = range.empty() ? Tensor() : part_of(*view, range);
  }
  for (const TensorRow& row : table) {
    if (!has_cut_groups(row)) continue;
    const ops::Weight weight = find_weight(mine, row.role, row.layer, row.expert);
    if (weight.values.empty()) continue;
    BFloat16* const numbers = matrices.emplace_back(expanded(weight)).get();
    const auto piece = [&](TensorPiece of) { return find_tensor(mine, row.role, of, row.layer, row.expert); };
    *piece(TensorPiece::kValues) = Tensor(numbers, DType::kBF16, {weight.out(), weight.in()});
    *piece(TensorPiece::kScales) = Tensor();
  }
  return mine;
}

}  // namespace sparrow
