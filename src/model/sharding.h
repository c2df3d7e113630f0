// SPDX-License-Identifier: Apache-2.0
// Sharding: which part of each tensor a tensor-parallel rank holds. Query heads, feed-forward channels and
// the vocabulary are split; KV heads are split as far as there are any and replicated beyond; what every rank
// needs whole is replicated.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "checkpoint/tensor_row.h"
#include "config/config.h"

namespace sparrow {

struct ParallelConfig {
  int size = 1;  // ranks that share each layer
  int rank = 0;
};

// Error: the model cannot be cut into that many equal parts; names the field that does not divide.
Status validate(const ModelConfig& config, const ParallelConfig& parallel);

// KV heads (and index heads) of one rank, and the first of them. Ranks beyond the number of heads share one.
int kv_heads_per_rank(const ModelConfig& config, int parallel_size);
int first_kv_head(const ModelConfig& config, const ParallelConfig& parallel);

// The part of a tensor that a rank holds: [begin, end) along one of its extents.
struct ShardRange {
  int axis = 0;
  int64_t begin = 0, end = 0;
};

// `row` comes from the table of the same configuration, and `parallel` has been validated.
ShardRange shard_of(const ModelConfig& config, const ParallelConfig& parallel, const TensorRow& row);

// Bytes of that part.
int64_t shard_bytes(const ModelConfig& config, const ParallelConfig& parallel, const TensorRow& row);

}  // namespace sparrow
