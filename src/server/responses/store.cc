// SPDX-License-Identifier: Apache-2.0
#include "server/responses/store.h"

#include <algorithm>
#include <iterator>

#include "base/strf.h"

namespace sparrow {

int64_t StoredResponse::bytes() const {
  // What the containers take beside the text.
  constexpr int64_t kEntryBytes = 512, kItemBytes = 64;
  int64_t sum = kEntryBytes + static_cast<int64_t>(body.size());
  for (const auto* items : {&input, &output})
    for (const auto& item : *items) sum += kItemBytes + static_cast<int64_t>(item->size());
  return sum;
}

ResponseStore::Entries::iterator ResponseStore::erase(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  const auto held = held_.find(entry->key);
  held->second.bytes -= entry->bytes;
  if (entry->is_running()) {
    --held->second.running;
    running_bytes_ -= entry->bytes;
  }
  if (--held->second.responses == 0) held_.erase(held);
  by_id_.erase(by_id_.find(entry->response->id));
  return entries_.erase(entry);
}

// All that expire do so after the same time, so that the oldest are the first.
void ResponseStore::forget_expired() {
  const Clock::time_point now = now_();
  for (auto entry = entries_.begin();
       entry != entries_.end() && (entry->is_running() || entry->expires <= now);)
    entry = entry->is_running() ? std::next(entry) : erase(entry);
}

ResponseStore::Entries::iterator ResponseStore::locate(const std::string& key, std::string_view id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() || found->second->key != key ? entries_.end() : found->second;
}

ResponseStore::Entries::iterator ResponseStore::oldest_of(const std::string& key) {
  return std::ranges::find_if(entries_,
                              [&](const Entry& entry) { return entry.key == key && !entry.is_running(); });
}

const std::string& ResponseStore::greediest() const {
  const auto bytes = [](const auto& held) { return held.second.can_make_room() ? held.second.bytes : 0; };
  return std::ranges::max_element(held_, {}, bytes)->first;
}

Status ResponseStore::check_size(int64_t bytes) const {
  if (bytes <= limits_.max_bytes) return Ok{};
  return Error{Errc::kInvalidArgument,
               strf("this response is too large to be stored ({} bytes, --response-memory is {})", bytes,
                    limits_.max_bytes)};
}

// Looked at before anything is dropped: nobody makes room for what cannot be stored.
Status ResponseStore::check_room(const Held& mine, int64_t bytes) const {
  SPARROW_TRY(check_size(bytes));
  if (running_bytes_ + bytes > limits_.max_bytes)
    return Error{
        Errc::kBusy,
        strf("responses that are being made in the background take {} bytes, this one would take {}, "
             "and --response-memory is {}: try again later",
             running_bytes_, bytes, limits_.max_bytes)};
  if (mine.running >= limits_.max_responses)
    return Error{Errc::kBusy, strf("all {} responses that this key may store are being made in the "
                                   "background: try again later",
                                   limits_.max_responses)};
  return Ok{};
}

Status ResponseStore::add(const std::string& key, std::shared_ptr<const StoredResponse> response) {
  const int64_t bytes = response->bytes();
  std::vector<std::shared_ptr<const StoredResponse>> dead;  // freed without the lock
  const std::lock_guard lock(mutex_);
  forget_expired();
  const auto drop = [&](Entries::iterator entry) {
    dead.push_back(entry->response);
    erase(entry);
  };
  if (const auto same = by_id_.find(response->id); same != by_id_.end()) {
    drop(same->second);
  } else {
    const auto found = held_.find(key);
    const Held mine = found == held_.end() ? Held{} : found->second;
    SPARROW_TRY(check_room(mine, bytes));
    if (mine.responses >= limits_.max_responses) drop(oldest_of(key));
  }
  while (bytes_ + bytes > limits_.max_bytes && bytes_ > running_bytes_) drop(oldest_of(greediest()));
  std::string id = response->id;
  entries_.push_back(
      {.key = key, .response = std::move(response), .expires = now_() + limits_.expiry, .bytes = bytes});
  by_id_.emplace(std::move(id), std::prev(entries_.end()));
  Held& mine = held_[key];
  ++mine.responses;
  mine.bytes += bytes;
  bytes_ += bytes;
  if (entries_.back().is_running()) {
    ++mine.running;
    running_bytes_ += bytes;
  }
  return Ok{};
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
