// SPDX-License-Identifier: Apache-2.0
#include "model/sharding.h"

#include <algorithm>

namespace sparrow {
namespace {

constexpr int kMaxOffered = 64;  // ranks

Error refused(std::string_view field, std::string message) {
  return {Errc::kInvalidArgument, std::move(message), std::string(field)};
}

Status check_divides(std::string_view field, int64_t value, int ranks, int64_t unit = 1) {
  if (value % (ranks * unit) == 0) return Ok{};
  const std::string whole = unit > 1 ? strf(" in groups of {} that share a scale", unit) : "";
  return refused(field, strf("{} {} cannot be split over {} ranks{}", field, value, ranks, whole));
}

// One line, without what would do instead.
Status check(const ModelConfig& config, const Grid& grid) {
  if (grid.tp < 1 || grid.dp < 1) return refused("", strf("{}: there are no such grids", describe(grid)));
  if (grid.rank < 0 || grid.rank >= grid.world())
    return refused("", strf("rank {} of {} does not exist", grid.rank, grid.world()));
  SPARROW_TRY(check_divides("num_attention_heads", config.num_query_heads, grid.tp));
  if (kSumParts % grid.tp != 0)
    return refused("", strf("{}: sums run in {} parts, which {} ranks cannot share equally", describe(grid),
                            kSumParts, grid.tp));
  if (config.num_kv_heads % grid.tp != 0 && grid.tp % config.num_kv_heads != 0)
    return refused("num_key_value_heads",
                   strf("num_key_value_heads {} can be neither split nor replicated over {} ranks",
                        config.num_kv_heads, grid.tp));
  SPARROW_TRY(check_divides("vocab_size", config.vocab_size, grid.tp));
  // Quantised weights have one scale for a group of channels, and a rank's columns must be whole groups.
  const int64_t unit = config.quant == QuantFormat::kNone ? 1 : kScaleGroup;
  SPARROW_TRY(check_divides("dense_intermediate_size", config.dense_intermediate_size, grid.tp, unit));
  SPARROW_TRY(check_divides("shared_intermediate_size", config.shared_intermediate_size, grid.world(), unit));
  if (grid.expert_parallel) return check_divides("num_local_experts", config.num_experts, grid.world());
  if (kSumParts % grid.world() != 0)
    return refused("", strf("{}: sums over an expert's channels run in {} parts, which {} ranks cannot share "
                            "equally; with --enable-expert-parallel each has whole experts",
                            describe(grid), kSumParts, grid.world()));
  return check_divides("intermediate_size", config.expert_intermediate_size, grid.world(), unit);
}

// "TP8 or TP4 x DP2"
std::string offer(const std::vector<Grid>& grids) {
  std::string text;
  for (const Grid& grid : grids) text += strf("{}{}", text.empty() ? "" : " or ", describe(grid));
  return text;
}

// What would do with so many ranks, or else with the next smaller and larger numbers.
std::string ways_out(const ModelConfig& config, int ranks) {
  const auto line = [&](int n) {
    return strf("{} GPU{}: {}", n, n == 1 ? "" : "s", offer(supported_grids(config, n)));
  };
  if (ranks < 1) return line(1);
  if (!supported_grids(config, ranks).empty()) return line(ranks);
  int fewer = std::min(ranks, kMaxOffered), more = ranks;
  while (fewer > 1 && supported_grids(config, fewer).empty()) --fewer;
  while (more <= kMaxOffered && supported_grids(config, more).empty()) ++more;
  return more > kMaxOffered ? line(fewer) : strf("{}; {}", line(fewer), line(more));
}

}  // namespace

Status validate(const ModelConfig& config, const Grid& grid) {
  Status status = check(config, grid);
  if (status.ok()) return status;
  Error error = status.error();
  error.message += strf("; {}", ways_out(config, grid.world()));
  return error;
}

std::vector<Grid> supported_grids(const ModelConfig& config, int ranks) {
  const int smallest = std::clamp(ranks, 1, std::min(config.num_kv_heads, kSumParts));
  std::vector<Grid> grids;
  for (int tp = kSumParts; tp >= smallest; tp /= 2) {
    if (ranks < 1 || ranks % tp != 0) continue;
    for (const bool expert_parallel : {false, true}) {
      const Grid grid{.tp = tp, .dp = ranks / tp, .expert_parallel = expert_parallel};
      if (!check(config, grid).ok()) continue;
      grids.push_back(grid);
      break;  // by channel where that is possible; whole experts are then a choice of their own
    }
  }
  return grids;
}

int kv_heads_per_rank(const ModelConfig& config, const Grid& grid) {
  return std::max(config.num_kv_heads / grid.tp, 1);
}

int first_kv_head(const ModelConfig& config, const Grid& grid) {
  return static_cast<int>(int64_t{grid.tp_rank()} * config.num_kv_heads / grid.tp);
}

int shared_index_heads(const ModelConfig& config, const Grid& grid) {
  constexpr int kMostHeads = 4;  // that the kernels take
  const bool is_sparse = std::count(config.layer_is_sparse.begin(), config.layer_is_sparse.end(), 1) > 0;
  return grid.tp > 1 && is_sparse && config.num_kv_heads <= kMostHeads ? config.num_kv_heads : 0;
}

int index_ranks(const Grid& grid, Device device) {
  return device == Device::kCpu ? grid.tp : 1;
}

ExpertRange experts_of(const ModelConfig& config, const Grid& grid) {
  if (!has_whole_experts(grid)) return {0, config.num_experts};
  const int count = config.num_experts / grid.world();
  return {grid.rank * count, count};
}

ShardRange shard_of(const ModelConfig& config, const Grid& grid, const TensorRow& row) {
  const std::vector<int64_t>& shape = row.spec.shape;
  const bool is_routed = row.part == LedgerPart::kRoutedExperts;
  if (is_routed && has_whole_experts(grid)) {
    const ExpertRange mine = experts_of(config, grid);
    const bool is_mine = row.expert >= mine.first && row.expert < mine.first + mine.count;
    return {0, 0, is_mine ? shape[0] : 0};
  }
  // Who shares it: all ranks, or those of the group.
  const bool is_expert = is_routed || row.part == LedgerPart::kSharedExperts;
  const int ranks = is_expert ? grid.world() : grid.tp, rank = is_expert ? grid.rank : grid.tp_rank();
  const auto split = [&](int axis) {
    const int64_t part = shape[static_cast<size_t>(axis)] / ranks;
    return ShardRange{axis, part * rank, part * (rank + 1)};
  };
  switch (row.cut) {
    case TensorCut::kWhole:
      return {0, 0, shape[0]};
    case TensorCut::kRows:
      return split(0);
    case TensorCut::kColumns:
      return split(1);
    case TensorCut::kKvHeads:
      break;
  }
  const int64_t head_rows = shape[0] / config.num_kv_heads;
  const int64_t begin = first_kv_head(config, grid) * head_rows;
  return {0, begin, begin + kv_heads_per_rank(config, grid) * head_rows};
}

int64_t shard_bytes(const ModelConfig& config, const Grid& grid, const TensorRow& row) {
  const ShardRange range = shard_of(config, grid, row);
  const int64_t extent = row.spec.shape[static_cast<size_t>(range.axis)];
  return static_cast<int64_t>(row.spec.bytes()) / extent * (range.end - range.begin);
}

}  // namespace sparrow
