// SPDX-License-Identifier: Apache-2.0
#include "server/media/picture_cache.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace sparrow {

Sha256Digest PictureCache::id_of(std::string_view salt, const Sha256Digest& file, const SizeRule& rule) {
  const std::array<int64_t, 3> sizes{rule.min_pixels, rule.max_pixels, rule.max_long_side.value_or(0)};
  return sha256(
      {std::as_bytes(std::span(file)), std::as_bytes(std::span(sizes)), std::as_bytes(std::span(salt))});
}

std::optional<Image> PictureCache::find(const Sha256Digest& id) {
  const std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return std::nullopt;
  entries_.splice(entries_.end(), entries_, found->second);
  return found->second->image;
}

void PictureCache::add(const Sha256Digest& id, const std::string& owner, const Image& image) {
  if (image.rgb.size() > max_bytes_) return;
  std::list<Entry> made;
  made.push_back({id, owner, image});  // copied before others have to wait
  const std::lock_guard lock(mutex_);
  if (by_id_.contains(id)) return;
  bytes_ += image.rgb.size();
  held_[owner] += image.rgb.size();
  entries_.splice(entries_.end(), made);
  by_id_[id] = std::prev(entries_.end());
  make_room();
}

void PictureCache::make_room() {
  while (bytes_ > max_bytes_) {
    // As all have more than fits, one at least has more than its part.
    const auto has_too_much = [&](const Entry& entry) {
      return held_[entry.owner] > max_bytes_ / held_.size();
    };
    const auto entry = std::ranges::find_if(entries_, has_too_much);
    const size_t size = entry->image.rgb.size();
    bytes_ -= size;
    const auto held = held_.find(entry->owner);
    held->second -= size;
    if (held->second == 0) held_.erase(held);
    by_id_.erase(entry->id);
    entries_.erase(entry);
  }
}

}  // namespace sparrow
