// SPDX-License-Identifier: Apache-2.0
#include "server/events/kv_mirror.h"

#include <algorithm>

namespace sparrow {

void KvMirror::apply(std::span<const CacheEvent> events) {
  for (const CacheEvent& event : events) {
    switch (event.kind) {
      case CacheEvent::Kind::kStored:
        store(event);
        break;
      case CacheEvent::Kind::kRemoved:
        for (const Digest& digest : event.digests) blocks_.erase(digest);
        break;
      case CacheEvent::Kind::kCleared:
        blocks_.clear();
        break;
    }
  }
}

void KvMirror::store(const CacheEvent& event) {
  const size_t size = event.ids.size() / event.digests.size();
  for (size_t i = 0; i < event.digests.size(); ++i) {
    const auto ids = event.ids.begin() + static_cast<int64_t>(i * size);
    blocks_[event.digests[i]] = {.serial = ++last_serial_,
                                 .parent = i == 0 ? event.parent : event.digests[i - 1],
                                 .ids = {ids, ids + static_cast<int64_t>(size)},
                                 .extra = event.extras[i]};
  }
}

std::vector<CacheEvent> KvMirror::list() const {
  std::vector<const std::pair<const Digest, Block>*> in_order;
  for (const auto& entry : blocks_) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(),
            [](const auto* a, const auto* b) { return a->second.serial < b->second.serial; });
  std::vector<CacheEvent> events = {{.kind = CacheEvent::Kind::kCleared}};
  for (const auto* entry : in_order) {
    const Block& block = entry->second;
    const bool goes_on = block.parent && events.back().kind == CacheEvent::Kind::kStored &&
                         events.back().digests.back() == *block.parent;
    if (!goes_on) events.push_back({.kind = CacheEvent::Kind::kStored, .parent = block.parent});
    CacheEvent& event = events.back();
    event.digests.push_back(entry->first);
    event.ids.insert(event.ids.end(), block.ids.begin(), block.ids.end());
    event.extras.push_back(block.extra);
  }
  return events;
}

}  // namespace sparrow
