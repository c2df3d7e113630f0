// SPDX-License-Identifier: Apache-2.0
#include "engine/media/feature_store.h"

#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/schedule/sequence.h"

namespace sparrow {

FeatureStore::FeatureStore(int64_t num_rows, int64_t max_patches)
    : max_patches_(max_patches), free_rows_(static_cast<size_t>(num_rows)) {
  std::iota(free_rows_.rbegin(), free_rows_.rend(), 0);
}

FeatureStore::Key FeatureStore::key_of(const MediaSegment& segment) {
  return {segment.salt, segment.digest, segment.index};
}

void FeatureStore::touch(Entry& entry) {
  order_.splice(order_.end(), order_, entry.in_order);
}

bool FeatureStore::make_room(int64_t num_rows) {
  const auto wanted = static_cast<size_t>(num_rows);
  for (auto at = order_.begin(); at != order_.end() && free_rows_.size() < wanted;) {
    const auto entry = entries_.find(**at++);
    if (entry->second.used_in == plan_) continue;
    free_rows_.insert(free_rows_.end(), entry->second.rows.begin(), entry->second.rows.end());
    stats_.rows_in_use -= static_cast<int64_t>(entry->second.rows.size());
    order_.erase(entry->second.in_order);
    entries_.erase(entry);
  }
  return free_rows_.size() >= wanted;
}

EncodeJob FeatureStore::add(const MediaSegment& segment) {
  const auto [at, is_new] = entries_.try_emplace(key_of(segment));
  SPARROW_CHECK(is_new);
  Entry& entry = at->second;
  const int64_t tokens = segment.num_tokens();
  entry.rows.assign(free_rows_.end() - tokens, free_rows_.end());
  free_rows_.resize(free_rows_.size() - static_cast<size_t>(tokens));
  entry.in_order = order_.insert(order_.end(), &at->first);
  entry.used_in = plan_;
  ++stats_.encoded;
  stats_.encoded_patches += segment.grid.patches();
  stats_.rows_in_use += tokens;
  return {.grid = segment.grid,
          .patches = std::span(*segment.patches)
                         .subspan(static_cast<size_t>(segment.first_patch * segment.row_numbers),
                                  static_cast<size_t>(segment.grid.patches() * segment.row_numbers)),
          .rows = entry.rows};
}

std::vector<EncodeJob> FeatureStore::plan(std::span<Sequence* const> sequences) {
  ++plan_;
  // Whatever is wanted soon goes after all that is not.
  for (const Sequence* sequence : sequences)
    for (const MediaSegment& segment : *sequence->segments)
      if (segment.end() > sequence->num_computed)
        if (const auto at = entries_.find(key_of(segment)); at != entries_.end()) touch(at->second);
  std::vector<EncodeJob> jobs;
  int64_t left = max_patches_;
  for (Sequence* sequence : sequences) {
    sequence->num_ready = Sequence::kNoEnd;
    for (const MediaSegment& segment : *sequence->segments) {
      if (segment.end() <= sequence->num_computed) continue;
      const auto at = entries_.find(key_of(segment));
      if (at != entries_.end()) {
        at->second.used_in = plan_;
        continue;
      }
      const bool is_within = jobs.empty() || segment.grid.patches() <= left;
      if (!is_within || !make_room(segment.num_tokens())) {
        sequence->num_ready = segment.begin();
        break;
      }
      left -= segment.grid.patches();
      jobs.push_back(add(segment));
    }
  }
  return jobs;
}

std::span<const int32_t> FeatureStore::rows_of(const MediaSegment& segment) const {
  const auto at = entries_.find(key_of(segment));
  SPARROW_CHECK(at != entries_.end());
  return at->second.rows;
}

}  // namespace sparrow
