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
  std::vector<int32_t> block_table;   // [sequences, max_blocks] physical block of each logical block
  int max_blocks = 0;

  std::vector<int32_t> logit_rows;  // [logits] rows of this batch whose logits are wanted, ascending

  // [tokens], or empty: the draw of the step before whose id the row gets; -1: ids has it
  std::vector<int32_t> drawn_by;

  int num_tokens() const { return static_cast<int>(ids.size()); }
  int num_sequences() const { return static_cast<int>(seq_lens.size()); }
};

}  // namespace sparrow
