// SPDX-License-Identifier: Apache-2.0
// ResponseStore: responses that their clients may come back to, in memory: bounded for each key and for all
// together, and forgotten after a while. Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow {

// Items as JSON, each with an id. Responses that go on from each other share them, and each counts them all:
// what is stored is bounded whoever shares with whom.
using StoredItems = std::vector<std::shared_ptr<const std::string>>;

struct StoredResponse {
  std::string id;
  std::string body;                        // the response, as JSON
  StoredItems input;                       // all that it was made of, from the first item on
  StoredItems output;                      // the items of its answer
  std::function<void()> cancel = nullptr;  // while it is being made in the background

  int64_t bytes() const;
};

struct StoreLimits {
  int64_t max_bytes = int64_t{256} << 20;  // of all; 0: nothing is stored
  int max_responses = 1000;                // of a key
  std::chrono::seconds expiry{3600};
};

class ResponseStore {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ResponseStore(StoreLimits limits, std::function<Clock::time_point()> now = Clock::now)
      : limits_(limits), now_(std::move(now)) {}

  bool enabled() const { return limits_.max_bytes > 0; }

  // Error where so many bytes can never be stored.
  Status check_size(int64_t bytes) const;

  // Where a key has too many, its oldest makes room; where memory is short, the oldest of the key that holds
  // most. What is being made in the background neither makes room nor expires, because its client was told to
  // come back for it: there may be no room left, which is Errc::kBusy. For the same reason what replaces
  // another of its id is always kept, even if it is larger.
  Status add(const std::string& key, std::shared_ptr<const StoredResponse> response);
  // nullptr: it is not there, or not this key's.
  std::shared_ptr<const StoredResponse> find(const std::string& key, std::string_view id);
  bool remove(const std::string& key, std::string_view id);

  size_t size();
  int64_t bytes();

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const StoredResponse> response;
    Clock::time_point expires;
    int64_t bytes;

    bool is_running() const { return response->cancel != nullptr; }
  };
  using Entries = std::list<Entry>;  // oldest first

  struct Held {
    int responses = 0, running = 0;  // of these
    int64_t bytes = 0;

    bool can_make_room() const { return responses > running; }
  };

  Entries::iterator erase(Entries::iterator entry);  // gives the next one
  void forget_expired();
  Status check_room(const Held& mine, int64_t bytes) const;
  // Of those that can make room.
  Entries::iterator oldest_of(const std::string& key);
  const std::string& greediest() const;
  Entries::iterator locate(const std::string& key, std::string_view id);

  const StoreLimits limits_;
  const std::function<Clock::time_point()> now_;
  std::mutex mutex_;
  Entries entries_;
  std::map<std::string, Entries::iterator, std::less<>> by_id_;
  std::map<std::string, Held> held_;  // by each key
  int64_t bytes_ = 0;
  int64_t running_bytes_ = 0;  // of these, those that are being made
};

}  // namespace sparrow
