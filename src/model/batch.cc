// SPDX-License-Identifier: Apache-2.0
#include "model/batch.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "kv/block_table.h"

namespace sparrow {
namespace {

template <typename T>
std::vector<T> part(const std::vector<T>& all, int begin, int end, T less = 0) {
  std::vector<T> some(all.begin() + begin, all.begin() + end);
  for (T& value : some) value -= less;
  return some;
}

std::span<const int32_t> blocks_of(const Batch& batch, int sequence) {
  const int32_t* row = batch.block_table.data() + int64_t{sequence} * batch.max_blocks;
  return {row, std::find(row, row + batch.max_blocks, -1)};
}

void fill_block_table(const Batch& batch, int first, int first_block, int num_blocks, Batch& mine) {
  for (int s = 0; s < mine.num_sequences(); ++s)
    mine.max_blocks = std::max(mine.max_blocks, static_cast<int>(blocks_of(batch, first + s).size()));
  mine.block_table.assign(int64_t{mine.num_sequences()} * mine.max_blocks, -1);
  for (int s = 0; s < mine.num_sequences(); ++s) {
    int32_t* own = mine.block_table.data() + int64_t{s} * mine.max_blocks;
    for (const int32_t block : blocks_of(batch, first + s)) {
      SPARROW_CHECK(first_block <= block && block < first_block + num_blocks);
      *own++ = block - first_block;
    }
  }
}

}  // namespace

GroupBegin group_begin(const Batch& batch, int group) {
  SPARROW_CHECK(0 <= group && group <= batch.num_groups());
  if (batch.group_sequences.empty() && group == 0) return {};
  const int sequence = batch.group_sequences.empty() ? batch.num_sequences() : batch.group_sequences[group];
  const int token = batch.cu_seqlens_q[sequence];
  const auto logit = std::lower_bound(batch.logit_rows.begin(), batch.logit_rows.end(), token);
  return {sequence, token, static_cast<int>(logit - batch.logit_rows.begin())};
}

Batch group_part(const Batch& batch, int group, int blocks_per_group) {
  const GroupBegin begin = group_begin(batch, group), end = group_begin(batch, group + 1);
  const int first_block = group * blocks_per_group;
  Batch mine;
  mine.ids = part(batch.ids, begin.token, end.token);
  mine.positions = part(batch.positions, begin.token, end.token);
  mine.slots = part(batch.slots, begin.token, end.token, int64_t{first_block} * kBlockTokens);
  mine.cu_seqlens_q = part(batch.cu_seqlens_q, begin.sequence, end.sequence + 1, begin.token);
  mine.seq_lens = part(batch.seq_lens, begin.sequence, end.sequence);
  mine.logit_rows = part(batch.logit_rows, begin.logit, end.logit, begin.token);
  if (!batch.drawn_by.empty()) mine.drawn_by = part(batch.drawn_by, begin.token, end.token);
  if (!batch.feature_rows.empty()) mine.feature_rows = part(batch.feature_rows, begin.token, end.token);
  fill_block_table(batch, begin.sequence, first_block, blocks_per_group, mine);
  return mine;
}

}  // namespace sparrow
