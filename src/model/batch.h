// SPDX-License-Identifier: Apache-2.0
// Batch: one step's tokens, flattened: what runs, without who asked for it. Models see no request, and every
// rank of a group is told the same.
#pragma once

#include <cstdint>
#include <vector>

namespace sparrow {

struct Batch {
  std::vector<int32_t> ids;        // [tokens]
  std::vector<int32_t> positions;  // [tokens] in their sequence
  std::vector<int64_t> slots;      // [tokens] where K, V and index-K go: block * 128 + offset

  std::vector<int32_t> cu_seqlens_q;  // [sequences + 1] first token of each sequence in this batch
  std::vector<int32_t> seq_lens;      // [sequences] tokens in the cache after this step
  std::vector<int32_t> block_table;   // [sequences, max_blocks] physical block of each logical block; then -1
  int max_blocks = 0;

  std::vector<int32_t> logit_rows;  // [logits] rows of this batch whose logits are wanted, ascending

  // [tokens], or empty: the draw of the step before, among those of all groups, whose id the row gets; -1:
  // ids has it
  std::vector<int32_t> drawn_by;

  // [tokens], or empty: the row of the feature memory that takes the place of the id's embedding; -1: none
  std::vector<int32_t> feature_rows;

  // [groups + 1] first sequence of each data-parallel group, and the end; empty: there is one group. Block
  // ids are one space, of which each group has an equal part, in their order.
  std::vector<int32_t> group_sequences;

  int num_tokens() const { return static_cast<int>(ids.size()); }
  int num_sequences() const { return static_cast<int>(seq_lens.size()); }
  int num_groups() const {
    return group_sequences.empty() ? 1 : static_cast<int>(group_sequences.size()) - 1;
  }
};

// What of a batch is a group's: from here to where the next group begins.
struct GroupBegin {
  int sequence = 0, token = 0, logit = 0;
};
GroupBegin group_begin(const Batch& batch, int group);  // of num_groups(): the end of the batch

// A group's part of a batch, with block ids from 0 on. It has as many columns of blocks as it needs, and
// may have no rows at all.
Batch group_part(const Batch& batch, int group, int blocks_per_group);

}  // namespace sparrow
