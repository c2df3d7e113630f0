// SPDX-License-Identifier: Apache-2.0
// Where a step's metadata lies on its way to the GPU: by the step's shape alone. Host arithmetic only: no
// CUDA.
#pragma once

#include <cstddef>
#include <vector>

namespace sparrow {

// Of a data-parallel group, padding included: at least one row, with which it joins the others' experts.
struct GroupShape {
  int rows = 1;
  int logits = 1;
};

// The sizes of a step: where its arrays lie and which graph replays it depend on nothing else.
struct StepShape {
  int decodes = 0;         // sequences with one token, which come first; padding included
  int prefills = 0;        // the others
  int prefill_tokens = 0;  // of them
  int longest_prefill = 0;
  int table_columns = 0;  // blocks of the longest sequence that fits
  int logits = 0;
  bool shares_index = false;       // ranks of a group score a share of its blocks each
  std::vector<GroupShape> groups;  // all of them; empty: there is one

  int tokens() const { return decodes + prefill_tokens; }
  int sequences() const { return decodes + prefills; }
  int num_groups() const { return groups.empty() ? 1 : static_cast<int>(groups.size()); }
  GroupShape group(int g) const {
    return groups.empty() ? GroupShape{tokens(), logits} : groups[static_cast<size_t>(g)];
  }
  int all_logits() const;  // of all groups
};

// In bytes.
struct StepLayout {
  explicit StepLayout(const StepShape& shape);

  size_t ids, drawn_by, feature_rows, positions, slots, seq_lens, cu_seqlens, logit_rows, num_rows, bytes;
};

// For every step within these limits, which hold for each of the groups. The block table has a buffer of its
// own, `max_columns` wide.
struct StepUploadBytes {
  StepUploadBytes(int max_step_tokens, int max_step_sequences, int max_columns, int groups = 1);

  size_t metadata, table;
};

}  // namespace sparrow
