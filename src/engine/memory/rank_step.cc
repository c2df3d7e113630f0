// SPDX-License-Identifier: Apache-2.0
#include "engine/memory/rank_step.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "engine/memory/graph_rows.h"
#include "kv/block_table.h"

namespace sparrow {
namespace {

// Longest contexts in blocks: kernels divide their work by what the table could hold.
constexpr std::array kColumnLadder = {16, 64, 256, 1024, 4096, 16384};

template <size_t N>
int next_rung(const std::array<int, N>& ladder, int value, int most) {
  const auto found = std::lower_bound(ladder.begin(), ladder.end(), value);
  return found == ladder.end() ? most : std::min(*found, most);
}

// The groups of a batch; where it names none, all of it is the first one's.
Batch with_groups(const Batch& batch, int groups) {
  Batch named = batch;
  if (!batch.group_sequences.empty()) return named;
  named.group_sequences.assign(static_cast<size_t>(groups) + 1, batch.num_sequences());
  named.group_sequences[0] = 0;
  return named;
}

void take_part(const Batch& batch, const RankStepLimits& limits, RankStep& step) {
  step.own = group_part(batch, limits.group, limits.blocks_per_group);
  step.first_logit = group_begin(batch, limits.group).logit;
  step.shape = shape_of(step.own);
  for (int g = 0; g < limits.num_groups; ++g) {
    const GroupBegin begin = group_begin(batch, g), end = group_begin(batch, g + 1);
    RankStep::Group& group = step.groups.emplace_back();
    group.rows = end.token - begin.token;
    for (int i = begin.logit; i < end.logit; ++i)
      group.logit_rows.push_back(batch.logit_rows[static_cast<size_t>(i)] - begin.token);
    step.shape.groups.push_back({std::max(group.rows, 1), std::max(end.logit - begin.logit, 1)});
  }
  if (step.own.num_tokens() == 0) step.shape.decodes = 1;
  step.shape.logits = step.shape.group(limits.group).logits;
}

// All groups alike: a graph for each two numbers of theirs would be too many.
void round_up(const RankStepLimits& limits, int columns, RankStep& step) {
  StepShape& shape = step.shape;
  int rows = 0;
  for (int g = 0; g < shape.num_groups(); ++g) rows = std::max(rows, shape.group(g).rows);
  shape.decodes = shape.logits = next_rung(kGraphRows, rows, limits.max_step_sequences);
  shape.table_columns = next_rung(kColumnLadder, columns, limits.max_columns);
  for (GroupShape& group : shape.groups) group = {shape.decodes, shape.logits};
  for (RankStep::Group& group : step.groups) {
    group.logit_rows.resize(static_cast<size_t>(group.rows));
    std::iota(group.logit_rows.begin(), group.logit_rows.end(), 0);
  }
}

// Few queries take as long as their keys take to come; each key of a prompt is multiplied many times.
constexpr int kScannedQueries = 16, kPromptWeight = 3;

// All groups do the same: ranks that take turns launch as often as each other.
bool shares_index(const Batch& batch, const RankStepLimits& limits) {
  if (!limits.shared_index_tokens || batch.seq_lens.empty()) return false;
  // Not by the table's width: rank 0 may have a wider one than those whom it tells of it.
  const int32_t longest = *std::max_element(batch.seq_lens.begin(), batch.seq_lens.end());
  if (blocks_for_tokens(longest) <= limits.top_k_blocks) return false;
  const bool named = !batch.group_sequences.empty();
  for (int g = 0; g < (named ? limits.num_groups : 1); ++g) {
    const int first = named ? batch.group_sequences[static_cast<size_t>(g)] : 0;
    const int end = named ? batch.group_sequences[static_cast<size_t>(g) + 1] : batch.num_sequences();
    int64_t tokens = 0;
    for (int s = first; s < end; ++s) {
      const int queries = batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s];
      if (queries == 1 || limits.shares_prompts)
        tokens += int64_t{batch.seq_lens[s]} * (queries > kScannedQueries ? kPromptWeight : 1);
    }
    if (tokens >= *limits.shared_index_tokens) return true;
  }
  return false;
}

}  // namespace

StepShape shape_of(const Batch& batch) {
  StepShape shape{.table_columns = std::max(batch.max_blocks, 1),
                  .logits = static_cast<int>(batch.logit_rows.size())};
  const int sequences = batch.num_sequences();
  const auto length = [&](int s) { return batch.cu_seqlens_q[s + 1] - batch.cu_seqlens_q[s]; };
  while (shape.decodes < sequences && length(shape.decodes) == 1) ++shape.decodes;
  shape.prefills = sequences - shape.decodes;
  shape.prefill_tokens = batch.num_tokens() - shape.decodes;
  for (int s = shape.decodes; s < sequences; ++s)
    shape.longest_prefill = std::max(shape.longest_prefill, length(s));
  return shape;
}

RankStep rank_step(const Batch& batch, const RankStepLimits& limits) {
  RankStep step;
  if (limits.num_groups > 1) {
    take_part(with_groups(batch, limits.num_groups), limits, step);
  } else {
    step.shape = shape_of(batch);
    step.groups = {{batch.num_tokens(), batch.logit_rows}};
  }
  step.shape.shares_index = shares_index(batch, limits);
  step.wanted_rows = step.groups[static_cast<size_t>(limits.group)].logit_rows;
  const bool decodes = batch.num_tokens() == batch.num_sequences();  // in all groups
  step.replays = limits.graphs && decodes && !batch.logit_rows.empty() && batch.feature_rows.empty();
  // As long as the longest of all groups: ranks capture a graph in the same step.
  if (step.replays) round_up(limits, std::max(batch.max_blocks, 1), step);
  return step;
}

}  // namespace sparrow
