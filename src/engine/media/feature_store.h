// SPDX-License-Identifier: Apache-2.0
// FeatureStore: which rows of the runner's feature memory hold the features of which segments. Like blocks of
// the cache, the rows are the runner's and who has them is decided here. Segments stay until their rows are
// wanted for others: those not used for longest go first. Known by salt and digest, so that one key's
// pictures are nothing to another. Host only, engine thread only.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/media/request_media.h"

namespace sparrow {

struct Sequence;

// A segment to encode, and the rows of the feature memory that its tokens go to, in their order.
struct EncodeJob {
  PatchGrid grid;
  std::span<const float> patches;
  std::vector<int32_t> rows;
};

class FeatureStore {
 public:
  // At most `max_patches` are planned at a time.
  FeatureStore(int64_t num_rows, int64_t max_patches);

  // What must be encoded so that sequences get on, the first of them first: their next segments that are not
  // here, one at least, as long as they are no more than a plan may have. They count as here from now on, and
  // every sequence knows how far it can run. Whoever comes first always gets on; what the others need may
  // have to wait for room.
  std::vector<EncodeJob> plan(std::span<Sequence* const> sequences);

  // The rows of a segment that is here.
  std::span<const int32_t> rows_of(const MediaSegment& segment) const;

  struct Stats {
    int64_t encoded = 0;  // segments
    int64_t encoded_patches = 0;
    int64_t rows_in_use = 0;
  };
  const Stats& stats() const { return stats_; }

 private:
  struct Key {
    std::string salt;
    Digest digest;
    int index;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    std::vector<int32_t> rows;
    uint64_t used_in = 0;                      // the plan that last wanted it
    std::list<const Key*>::iterator in_order;  // of use
  };
  using Entries = std::map<Key, Entry>;

  static Key key_of(const MediaSegment& segment);
  void touch(Entry& entry);
  // Makes room among what this plan has not wanted yet. False: there is none.
  bool make_room(int64_t num_rows);
  EncodeJob add(const MediaSegment& segment);

  const int64_t max_patches_;
  Entries entries_;
  std::list<const Key*> order_;  // least recently used first
  std::vector<int32_t> free_rows_;
  uint64_t plan_ = 0;
  Stats stats_;
};

}  // namespace sparrow
