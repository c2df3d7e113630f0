// SPDX-License-Identifier: Apache-2.0
#include "engine/media/feature_store.h"

#include <utility>

#include "engine/schedule/sequence.h"

namespace sparrow {

FeatureStore::FeatureStore(int64_t num_rows, int64_t max_patches, int groups, int ranks)
    : max_patches_(max_patches), ranks_(ranks), groups_(static_cast<size_t>(groups), FeatureRows(num_rows)) {}

EncodeJob FeatureStore::job_of(int group, const MediaSegment& segment) {
  ++stats_.encoded;
  stats_.encoded_patches += segment.grid.patches();
  const std::span<const int32_t> rows = rows_of(group, segment);
  return {.group = group,
          .grid = segment.grid,
          .patches = std::span(*segment.patches)
                         .subspan(static_cast<size_t>(segment.first_patch * segment.row_numbers),
                                  static_cast<size_t>(segment.grid.patches() * segment.row_numbers)),
          .rows = {rows.begin(), rows.end()}};
}

void FeatureStore::plan(Sequence& sequence, Planned& planned, std::vector<EncodeJob>& jobs) {
  FeatureRows& rows = groups_[static_cast<size_t>(sequence.group)];
  const bool is_first = std::exchange(planned.nobody, false);
  sequence.num_ready = Sequence::kNoEnd;
  for (const MediaSegment& segment : *sequence.segments) {
    if (segment.end() <= sequence.num_computed || rows.want(segment)) continue;
    const int64_t patches = segment.grid.patches(), before = planned.turns.patches_of_next();
    const bool is_within = before == 0 || patches <= max_patches_ - before;
    // Without it the first sequence cannot run a single token.
    const bool has_to_be = is_first && segment.begin() <= sequence.num_computed;
    if (!is_within || !rows.add(segment, has_to_be)) {
      sequence.num_ready = segment.begin();
      return;
    }
    planned.turns.next(patches);
    jobs.push_back(job_of(sequence.group, segment));
  }
}

std::vector<EncodeJob> FeatureStore::plan(std::span<Sequence* const> sequences) {
  for (FeatureRows& rows : groups_) rows.begin_plan();
  // Whatever is wanted soon goes after all that is not.
  for (const Sequence* sequence : sequences)
    for (const MediaSegment& segment : *sequence->segments)
      if (segment.end() > sequence->num_computed)
        groups_[static_cast<size_t>(sequence->group)].touch(segment);
  std::vector<EncodeJob> jobs;
  std::vector<Planned> planned(groups_.size(), {.turns = EncodeTurns(ranks_)});
  for (Sequence* sequence : sequences) plan(*sequence, planned[static_cast<size_t>(sequence->group)], jobs);
  return jobs;
}

int64_t FeatureStore::rows_in_use() const {
  int64_t rows = 0;
  for (const FeatureRows& group : groups_) rows += group.rows_in_use();
  return rows;
}

}  // namespace sparrow
