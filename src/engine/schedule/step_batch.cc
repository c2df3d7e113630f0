// SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/step_batch.h"

#include <algorithm>

#include "base/check.h"

namespace sparrow {
namespace {

void clear(Batch& batch) {
  batch.ids.clear();
  batch.positions.clear();
  batch.slots.clear();
  batch.cu_seqlens_q.assign(1, 0);
  batch.seq_lens.clear();
  batch.logit_rows.clear();
  batch.drawn_by.clear();
  batch.feature_rows.clear();
  batch.max_blocks = 0;
  batch.group_sequences.clear();
}

void append(Batch& batch, const StepSlice& slice) {
  const Sequence& sequence = *slice.sequence;
  const bool drawn = slice.drawn_by >= 0;
  SPARROW_CHECK_LE(slice.first + slice.num_tokens, sequence.num_tokens() + (drawn ? 1 : 0));
  const int first_row = batch.num_tokens();
  if (drawn) batch.drawn_by.resize(batch.ids.size(), -1);
  for (int i = 0; i < slice.num_tokens; ++i) {
    const int64_t position = slice.first + i;
    if (drawn) batch.drawn_by.push_back(slice.drawn_by);
    batch.ids.push_back(drawn ? 0 : sequence.ids[position]);
    batch.positions.push_back(static_cast<int32_t>(position));
    batch.slots.push_back(sequence.blocks.slot(position));
  }
  for (const RowRange& rows : {slice.scored, slice.sampled})
    for (int i = 0; i < rows.count; ++i) batch.logit_rows.push_back(first_row + rows.first + i);
  batch.cu_seqlens_q.push_back(batch.num_tokens());
  batch.seq_lens.push_back(static_cast<int32_t>(slice.first + slice.num_tokens));
}

// The rows of the slice's tokens that stand for media: `first_row` is its first in the batch.
void set_feature_rows(Batch& batch, const StepSlice& slice, int first_row, const FeatureStore& features) {
  const int64_t first = slice.first, end = slice.first + slice.num_tokens;
  for (const MediaSegment& segment : *slice.sequence->segments) {
    if (segment.end() <= first || segment.begin() >= end) continue;
    const std::span<const int32_t> rows = features.rows_of(slice.sequence->group, segment);
    batch.feature_rows.resize(batch.ids.size(), -1);
    size_t token = 0;
    for (const PositionRun& run : segment.runs)
      for (int64_t position = run.begin; position < run.end; ++position, ++token)
        if (position >= first && position < end)
          batch.feature_rows[static_cast<size_t>(first_row + position - first)] = rows[token];
  }
}

void fill_block_table(Batch& batch, std::span<const StepSlice> slices) {
  for (const StepSlice& slice : slices)
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int>(slice.sequence->blocks.blocks().size()));
  batch.block_table.assign(slices.size() * batch.max_blocks, -1);
  for (size_t s = 0; s < slices.size(); ++s) {
    const std::span<const BlockId> blocks = slices[s].sequence->blocks.blocks();
    std::copy(blocks.begin(), blocks.end(),
              batch.block_table.begin() + static_cast<int64_t>(s) * batch.max_blocks);
  }
}

void fill_group_sequences(Batch& batch, std::span<const StepSlice> slices, int groups) {
  batch.group_sequences.push_back(0);
  size_t end = 0;
  for (int group = 0; group < groups; ++group) {
    while (end < slices.size() && slices[end].sequence->group == group) ++end;
    batch.group_sequences.push_back(static_cast<int32_t>(end));
  }
  SPARROW_CHECK_EQ(end, slices.size());
}

}  // namespace

void fill_batch(std::span<const StepSlice> slices, Batch& batch, int groups, const FeatureStore* features) {
  clear(batch);
  for (const StepSlice& slice : slices) {
    const int first_row = batch.num_tokens();
    append(batch, slice);
    if (features && slice.sequence->segments) set_feature_rows(batch, slice, first_row, *features);
  }
  if (!batch.feature_rows.empty()) batch.feature_rows.resize(batch.ids.size(), -1);
  fill_block_table(batch, slices);
  if (groups > 1) fill_group_sequences(batch, slices, groups);
}

}  // namespace sparrow
