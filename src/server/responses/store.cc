// SPDX-License-Identifier: Apache-2.0
#include "server/responses/store.h"

#include <algorithm>
#include <iterator>

namespace sparrow {

int64_t StoredResponse::bytes() const {
  // What the containers take beside the text.
  constexpr int64_t kEntryBytes = 512, kItemBytes = 64;
  int64_t sum = kEntryBytes + static_cast<int64_t>(body.size());
  for (const auto* items : {&input, &output})
    for (const auto& item : *items) sum += kItemBytes + static_cast<int64_t>(item->size());
  return sum;
}

void ResponseStore::erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  const auto held = held_.find(entry->key);
  held->second.bytes -= entry->bytes;
  if (--held->second.responses == 0) held_.erase(held);
  by_id_.erase(by_id_.find(entry->response->id));
  entries_.erase(entry);
}

// All expire after the same time, so that the oldest are the first.
void ResponseStore::forget_expired() {
  const Clock::time_point now = now_();
  while (!entries_.empty() && entries_.front().expires <= now) erase(entries_.begin());
}

ResponseStore::Entries::iterator ResponseStore::locate(const std::string& key, std::string_view id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || found->second->key != key ? entries_.end() : found->second;
}

ResponseStore::Entries::iterator ResponseStore::oldest_of(const std::string& key) {
  return std::ranges::find(entries_, key, &Entry::key);
}

const std::string& ResponseStore::greediest() const {
  return std::ranges::max_element(held_, {}, [](const auto& held) { return held.second.bytes; })->first;
}

void ResponseStore::add(const std::string& key, std::shared_ptr<const StoredResponse> response) {
  if (!enabled()) return;
  const int64_t bytes = response->bytes();
  std::vector<std::shared_ptr<const StoredResponse>> dead;  // freed without the lock
  const std::lock_guard lock(mutex_);
  forget_expired();
  const auto drop = [&](Entries::iterator entry) {
    dead.push_back(entry->response);
    erase(entry);
  };
  if (const auto same = by_id_.find(response->id); same != by_id_.end()) drop(same->second);
  if (bytes > limits_.max_bytes) return;
  if (const auto mine = held_.find(key);
      mine != held_.end() && mine->second.responses >= limits_.max_responses)
    drop(oldest_of(key));
  while (bytes_ + bytes > limits_.max_bytes) drop(oldest_of(greediest()));
  std::string id = response->id;
  entries_.push_back(
      {.key = key, .response = std::move(response), .expires = now_() + limits_.expiry, .bytes = bytes});
  by_id_.emplace(std::move(id), std::prev(entries_.end()));
  Held& mine = held_[key];
  ++mine.responses;
  mine.bytes += bytes;
  bytes_ += bytes;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& key, std::string_view id) {
  const std::lock_guard lock(mutex_);
  forget_expired();
  const auto entry = locate(key, id);
  return entry == entries_.end() ? nullptr : entry->response;
}

bool ResponseStore::remove(const std::string& key, std::string_view id) {
  std::shared_ptr<const StoredResponse> dead;
  const std::lock_guard lock(mutex_);
  const auto entry = locate(key, id);
  if (entry == entries_.end()) return false;
  dead = entry->response;
  erase(entry);
  return true;
}

size_t ResponseStore::size() {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

int64_t ResponseStore::bytes() {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace sparrow
