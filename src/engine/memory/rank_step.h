// SPDX-License-Identifier: Apache-2.0
// RankStep: what of a batch a rank of a GPU runs, and in which shape. Every rank comes to the same shapes of
// all groups by itself: they follow from the batch and from limits that all share. Host arithmetic only: no
// CUDA.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/memory/step_layout.h"
#include "model/batch.h"

namespace sparrow {

struct RankStep {
  // What others have to know of a group: how many of its rows are real, and which of them get logits.
  struct Group {
    int rows = 0;
    std::vector<int32_t> logit_rows;
  };

  Batch own;  // this group's part of several
  StepShape shape;
  std::vector<Group> groups;         // all of them
  std::vector<int32_t> wanted_rows;  // of this group, whose logits are asked for
  int first_logit = 0;               // of these, among those of all groups
  bool replays = false;              // in a shape that has a graph; then every row gets logits

  // This group's part of the batch that it was made of.
  const Batch& batch(const Batch& all) const { return groups.size() > 1 ? own : all; }
};

struct RankStepLimits {
  int group = 0, num_groups = 1;
  int blocks_per_group = 0;
  int max_step_sequences = 0, max_columns = 0;
  bool graphs = false;  // whether decode steps run in graphs
  // Where ranks of a group may share the scan of the index.
  std::optional<int64_t> shared_index_tokens;  // from so many cached tokens of a group on
  int top_k_blocks = 0;                        // contexts of no more blocks are not scanned
  bool shares_prompts = false;                 // whether a prompt's rows are scored with less work then
};

// A batch that names no groups is the first one's. Of several, a group without rows gets a row of padding,
// and one without logits a row of them: in every exchange of rows each waits to hear from all, and the last
// one of a step is that before the logits.
RankStep rank_step(const Batch& batch, const RankStepLimits& limits);

// The shape of a group's batch as it is.
StepShape shape_of(const Batch& batch);

}  // namespace sparrow
