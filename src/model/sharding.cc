// SPDX-License-Identifier: Apache-2.0
#include "model/sharding.h"

#include <algorithm>

namespace sparrow {
namespace {

Status check_divides(std::string_view field, int64_t value, int64_t size) {
  if (value % size == 0) return Ok{};
  return Error{Errc::kInvalidArgument, strf("{} {} cannot be split over {} ranks", field, value, size),
               std::string(field)};
}

}  // namespace

Status validate(const ModelConfig& config, const ParallelConfig& parallel) {
  const int size = parallel.size;
  if (size < 1 || parallel.rank < 0 || parallel.rank >= size)
    return Error{Errc::kInvalidArgument, strf("rank {} of {} does not exist", parallel.rank, size)};
  SPARROW_TRY(check_divides("num_attention_heads", config.num_query_heads, size));
  if (config.num_kv_heads % size != 0 && size % config.num_kv_heads != 0)
    return Error{Errc::kInvalidArgument,
                 strf("num_key_value_heads {} can be neither split nor replicated over {} ranks",
                      config.num_kv_heads, size)};
  SPARROW_TRY(check_divides("vocab_size", config.vocab_size, size));
  // Quantised weights have one scale for a group of channels, and a rank's columns must be whole groups.
  const int64_t group = config.quant == QuantFormat::kNone ? 1 : kScaleGroup;
  SPARROW_TRY(check_divides("intermediate_size", config.expert_intermediate_size, size * group));
  SPARROW_TRY(check_divides("dense_intermediate_size", config.dense_intermediate_size, size * group));
  return check_divides("shared_intermediate_size", config.shared_intermediate_size, size * group);
}

int kv_heads_per_rank(const ModelConfig& config, int parallel_size) {
  return std::max(config.num_kv_heads / parallel_size, 1);
}

int first_kv_head(const ModelConfig& config, const ParallelConfig& parallel) {
  return static_cast<int>(int64_t{parallel.rank} * config.num_kv_heads / parallel.size);
}

ShardRange shard_of(const ModelConfig& config, const ParallelConfig& parallel, const TensorRow& row) {
  const std::vector<int64_t>& shape = row.spec.shape;
  const auto split = [&](int axis) {
    const int64_t part = shape[static_cast<size_t>(axis)] / parallel.size;
    return ShardRange{axis, part * parallel.rank, part * (parallel.rank + 1)};
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
  const int64_t begin = first_kv_head(config, parallel) * head_rows;
  return {0, begin, begin + kv_heads_per_rank(config, parallel.size) * head_rows};
}

int64_t shard_bytes(const ModelConfig& config, const ParallelConfig& parallel, const TensorRow& row) {
  const ShardRange range = shard_of(config, parallel, row);
  const int64_t extent = row.spec.shape[static_cast<size_t>(range.axis)];
  return static_cast<int64_t>(row.spec.bytes()) / extent * (range.end - range.begin);
}

}  // namespace sparrow
