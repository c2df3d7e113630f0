// SPDX-License-Identifier: Apache-2.0
// Sharding: which part of each tensor a rank holds. A group's ranks split query heads, the dense
// feed-forward's channels and the vocabulary; KV heads as far as there are any, beyond that ranks share one.
// All ranks split the experts: routed ones by channel or, expert-parallel, whole; the shared one always by
// channel. What every rank needs whole is replicated.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "base/result.h"
#include "base/tensor.h"
#include "checkpoint/tensor_row.h"
#include "comm/grid.h"
#include "config/config.h"

namespace sparrow {

// Products that are cut by columns are summed in so many fixed parts, whatever the number of ranks, so that
// the sum has one order: a rank computes some of them, and no more than so many ranks can share one.
inline constexpr int kSumParts = 8;
// Or in as many as a small model has room for: the largest power of two that gives each part whole units.
constexpr int sum_parts_of(int64_t columns, int64_t unit) {
  return columns % unit == 0 ? static_cast<int>(std::gcd<int64_t>(columns / unit, kSumParts)) : 1;
}

// Error: the model cannot be cut that way; says why, and which grids of as many ranks would do.
Status validate(const ModelConfig& config, const Grid& grid);

// What a model can run on with so many ranks, the fastest for one request first; none: no grid of that size.
// Left out are groups that are smaller than they could be without holding anything twice.
std::vector<Grid> supported_grids(const ModelConfig& config, int ranks);

// KV heads (and index heads) of one rank, and the first of them. Ranks beyond the number of heads share one.
int kv_heads_per_rank(const ModelConfig& config, const Grid& grid);
int first_kv_head(const ModelConfig& config, const Grid& grid);

// Ranks that share a group's index keys, block by block (kv/kv_cache.h). On GPUs each keeps all of them.
int index_ranks(const Grid& grid, Device device);

// GPU ranks keep all index keys and may share the scoring of blocks: then each has the index heads of all.
// How many these are; 0: a rank has its own alone.
int shared_index_heads(const ModelConfig& config, const Grid& grid);

// The routed experts of which a rank has a part, or, expert-parallel, those that it has whole.
struct ExpertRange {
  int first = 0, count = 0;
};
ExpertRange experts_of(const ModelConfig& config, const Grid& grid);

// Whether ranks hold other experts than their neighbours. Over one rank that is no cut.
inline bool has_whole_experts(const Grid& grid) {
  return grid.expert_parallel && grid.world() > 1;
}

// The part of a tensor that a rank holds: [begin, end) along one of its extents; empty where it is another
// rank's expert.
struct ShardRange {
  int axis = 0;
  int64_t begin = 0, end = 0;

  bool empty() const { return begin == end; }
};

// `row` comes from the table of the same configuration, and `grid` has been validated.
ShardRange shard_of(const ModelConfig& config, const Grid& grid, const TensorRow& row);

// Bytes of that part.
int64_t shard_bytes(const ModelConfig& config, const Grid& grid, const TensorRow& row);

}  // namespace sparrow
