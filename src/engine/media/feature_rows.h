// SPDX-License-Identifier: Apache-2.0
// FeatureRows: which rows of a group's feature memory hold the features of which segments. Segments stay
// until their rows are wanted for others. Known by salt and digest, so that one key's pictures are nothing to
// another; and keys share the rows: one that has no more than its part loses nothing to the others. Host
// only, engine thread only.
#pragma once

#include <compare>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/media/request_media.h"

namespace sparrow {

class FeatureRows {
 public:
  explicit FeatureRows(int64_t num_rows);

  // From now on nothing is wanted.
  void begin_plan() { ++plan_; }
  // Goes after all that is not touched, if it is here.
  void touch(const MediaSegment& segment);
  // It stays until the next plan begins. False: it is not here.
  bool want(const MediaSegment& segment);
  // Rows for a segment that is not here, which is wanted from now on. Others make room that are not wanted:
  // those of its own key and of keys with more than their part, the longest unused first; and after them
  // anybody's, if it has to be. False: that is not enough, and nothing has changed.
  bool add(const MediaSegment& segment, bool has_to_be);

  // Of a segment that is here.
  std::span<const int32_t> rows_of(const MediaSegment& segment) const;
  int64_t rows_in_use() const { return num_rows_ - static_cast<int64_t>(free_.size()); }

 private:
  struct Key {
    std::string salt;
    Digest digest;
    int index;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    std::string owner;
    std::vector<int32_t> rows;
    uint64_t wanted_in = 0;                    // the last plan that wanted it
    std::list<const Key*>::iterator in_order;  // of use
  };
  using Entries = std::map<Key, Entry>;

  static Key key_of(const MediaSegment& segment);
  // Who makes room; nullopt: there is not enough.
  std::optional<std::vector<Entries::iterator>> victims(const MediaSegment& segment, bool has_to_be);
  void drop(Entries::iterator entry);

  const int64_t num_rows_;
  Entries entries_;
  std::list<const Key*> order_;          // least recently used first
  std::map<std::string, int64_t> held_;  // rows, by owner; of those that have any
  std::vector<int32_t> free_;
  uint64_t plan_ = 0;
};

}  // namespace sparrow
