// SPDX-License-Identifier: Apache-2.0
// Which rank encodes which pictures. On GPUs the ranks of a group share those of their group out among them;
// what other groups need is no business of theirs. Of an embedding, which is the sum over the group, the rank
// that encoded it adds its features and the others zeros: nobody else needs them. Host only, engine thread
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/media/encode_turns.h"
#include "engine/media/feature_store.h"

namespace sparrow {

// A GPU's part.
class EncodeShare {
 public:
  // `rank` of the group's `ranks`, each of which has so many rows of features.
  EncodeShare(int group, int rank, int ranks, int64_t num_rows)
      : group_(group), rank_(rank), ranks_(ranks), encoded_by_(static_cast<size_t>(num_rows)) {}

  // Those of the jobs that this rank encodes. Every rank of the group is asked about the same ones.
  std::vector<const EncodeJob*> take(std::span<const EncodeJob> jobs) {
    std::vector<const EncodeJob*> mine;
    EncodeTurns turns(ranks_);
    for (const EncodeJob& job : jobs) {
      if (job.group != group_) continue;
      const int by = turns.next(job.grid.patches());
      for (const int32_t row : job.rows) encoded_by_[static_cast<size_t>(row)] = by;
      if (by == rank_) mine.push_back(&job);
    }
    return mine;
  }
  // Whether this rank's memory has the row.
  bool has(int32_t row) const { return encoded_by_[static_cast<size_t>(row)] == rank_; }
  int64_t num_rows() const { return static_cast<int64_t>(encoded_by_.size()); }

 private:
  const int group_, rank_, ranks_;
  std::vector<int> encoded_by_;  // [rows] the rank of the group
};

}  // namespace sparrow
