// SPDX-License-Identifier: Apache-2.0
#include "engine/media/feature_rows.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace sparrow {

FeatureRows::FeatureRows(int64_t num_rows) : num_rows_(num_rows), free_(static_cast<size_t>(num_rows)) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

FeatureRows::Key FeatureRows::key_of(const MediaSegment& segment) {
  return {segment.salt, segment.digest, segment.index};
}

void FeatureRows::touch(const MediaSegment& segment) {
  if (const auto at = entries_.find(key_of(segment)); at != entries_.end())
    order_.splice(order_.end(), order_, at->second.in_order);
}

bool FeatureRows::want(const MediaSegment& segment) {
  const auto at = entries_.find(key_of(segment));
  if (at == entries_.end()) return false;
  at->second.wanted_in = plan_;
  return true;
}

std::optional<std::vector<FeatureRows::Entries::iterator>> FeatureRows::victims(const MediaSegment& segment,
                                                                                bool has_to_be) {
  std::map<std::string, int64_t> held = held_;
  held.try_emplace(segment.owner, 0);
  const int64_t part = num_rows_ / static_cast<int64_t>(held.size());
  int64_t missing = segment.num_tokens() - static_cast<int64_t>(free_.size());
  std::vector<Entries::iterator> chosen, others;
  const auto choose = [&](Entries::iterator entry) {
    const auto rows = static_cast<int64_t>(entry->second.rows.size());
    missing -= rows;
    held[entry->second.owner] -= rows;
    chosen.push_back(entry);
  };
  for (auto at = order_.begin(); at != order_.end() && missing > 0; ++at) {
    const auto entry = entries_.find(**at);
    if (entry->second.wanted_in == plan_) continue;
    const std::string& owner = entry->second.owner;
    if (owner == segment.owner || held[owner] > part)
      choose(entry);
    else
      others.push_back(entry);
  }
  for (size_t i = 0; i < others.size() && missing > 0 && has_to_be; ++i) choose(others[i]);
  if (missing > 0) return std::nullopt;
  return chosen;
}

void FeatureRows::drop(Entries::iterator entry) {
  const std::vector<int32_t>& rows = entry->second.rows;
  free_.insert(free_.end(), rows.begin(), rows.end());
  const auto held = held_.find(entry->second.owner);
  held->second -= static_cast<int64_t>(rows.size());
  if (held->second == 0) held_.erase(held);
  order_.erase(entry->second.in_order);
  entries_.erase(entry);
}

bool FeatureRows::add(const MediaSegment& segment, bool has_to_be) {
  const auto chosen = victims(segment, has_to_be);
  if (!chosen) return false;
  for (const Entries::iterator entry : *chosen) drop(entry);
  const auto [at, is_new] = entries_.try_emplace(key_of(segment));
  SPARROW_CHECK(is_new);
  Entry& entry = at->second;
  entry.owner = segment.owner;
  const int64_t tokens = segment.num_tokens();
  entry.rows.assign(free_.end() - tokens, free_.end());
  free_.resize(free_.size() - static_cast<size_t>(tokens));
  held_[entry.owner] += tokens;
  entry.wanted_in = plan_;
  entry.in_order = order_.insert(order_.end(), &at->first);
  return true;
}

std::span<const int32_t> FeatureRows::rows_of(const MediaSegment& segment) const {
  const auto at = entries_.find(key_of(segment));
  SPARROW_CHECK(at != entries_.end());
  return at->second.rows;
}

}  // namespace sparrow
