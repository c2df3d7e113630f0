// SPDX-License-Identifier: Apache-2.0
// FeatureStore: which segments are encoded when, and where their features are. Like blocks of the cache, the
// rows of the feature memory are the runner's, each data-parallel group has its own, and who has them is
// decided here. Host only, engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/media/encode_turns.h"
#include "engine/media/feature_rows.h"
#include "engine/media/request_media.h"

namespace sparrow {

struct Sequence;

// A segment to encode, and the rows of a group's feature memory that its tokens go to, in their order. The
// other groups have no use for it.
struct EncodeJob {
  int group = 0;
  PatchGrid grid;
  std::span<const float> patches;
  std::vector<int32_t> rows;
};

class FeatureStore {
 public:
  // Of each group: so many rows, and `ranks` that encode at most `max_patches` each at a time.
  FeatureStore(int64_t num_rows, int64_t max_patches, int groups = 1, int ranks = 1);

  // What must be encoded so that sequences get on, the first of each group first: their next segments that
  // are not here, as long as no rank has more than it may, but for one that it has alone. They count as here
  // from now on, and every sequence knows how far it can run. Whoever comes first in its group always gets
  // on; what the others need may have to wait for room.
  std::vector<EncodeJob> plan(std::span<Sequence* const> sequences);

  // The rows of a segment that is here, in a sequence's group.
  std::span<const int32_t> rows_of(int group, const MediaSegment& segment) const {
    return groups_[static_cast<size_t>(group)].rows_of(segment);
  }

  struct Stats {
    int64_t encoded = 0;  // segments
    int64_t encoded_patches = 0;
  };
  const Stats& stats() const { return stats_; }
  int64_t rows_in_use() const;

 private:
  // A plan so far, in a group.
  struct Planned {
    EncodeTurns turns;
    bool nobody = true;  // no sequence yet
  };
  void plan(Sequence& sequence, Planned& planned, std::vector<EncodeJob>& jobs);
  EncodeJob job_of(int group, const MediaSegment& segment);

  const int64_t max_patches_;
  const int ranks_;
  std::vector<FeatureRows> groups_;
  Stats stats_;
};

}  // namespace sparrow
