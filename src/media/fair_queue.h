// SPDX-License-Identifier: Apache-2.0
// FairQueue: things that wait for their turn. Owners share by cost, however much each of them asks for; an
// owner's own things keep their order, but for what may not run yet. Bounded for everybody together and for
// each owner. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace sparrow {

struct QueueLimits {
  int items = 0;
  size_t bytes = 0;
};

template <typename T>
class FairQueue {
 public:
  FairQueue(QueueLimits all, QueueLimits of_owner) : all_(all), of_owner_(of_owner) {}

  enum class Push { kTaken, kFull, kOwnerFull };
  // What is popped still counts until release(): it takes memory as before.
  Push push(const std::string& owner, size_t bytes, uint64_t cost, T item) {
    if (!fits(held_, bytes, all_)) return Push::kFull;
    const auto known = lanes_.find(owner);
    if (!fits(known == lanes_.end() ? Held{} : known->second.held, bytes, of_owner_)) return Push::kOwnerFull;
    forget_idle_lanes();
    Lane& lane = lanes_[owner];
    // Who comes back after a while has saved nothing up.
    if (lane.waiting.empty() && lane.served < now_) lane.served = now_;
    lane.waiting.push_back({cost, std::move(item)});
    lane.held.add(bytes);
    held_.add(bytes);
    ++num_waiting_;
    return Push::kTaken;
  }

  // The first thing of the owner who has had least.
  std::optional<T> pop() {
    return pop([](const T&) { return true; });
  }
  // The first for which may(item) holds. Others before it stay where they are.
  template <typename May>
  std::optional<T> pop(May&& may) {
    Lane* next = nullptr;
    typename std::deque<Waiting>::iterator taken;
    for (auto& [owner, lane] : lanes_) {
      if (next && lane.served >= next->served) continue;
      const auto first = std::ranges::find_if(lane.waiting, may, &Waiting::item);
      if (first != lane.waiting.end()) next = &lane, taken = first;
    }
    if (!next) return std::nullopt;
    now_ = next->served;
    next->served += taken->cost;
    T item = std::move(taken->item);
    next->waiting.erase(taken);
    --num_waiting_;
    return item;
  }

  // Takes back what waits and for which is(item) holds; nullopt: no such thing waits.
  template <typename Is>
  std::optional<T> remove(Is&& is) {
    for (auto& [owner, lane] : lanes_)
      for (auto it = lane.waiting.begin(); it != lane.waiting.end(); ++it)
        if (is(it->item)) {
          T item = std::move(it->item);
          lane.waiting.erase(it);
          --num_waiting_;
          return item;
        }
    return std::nullopt;
  }

  // It is done, or was taken back.
  void release(const std::string& owner, size_t bytes) {
    lanes_[owner].held.remove(bytes);
    held_.remove(bytes);
  }

  int num_waiting() const { return num_waiting_; }

 private:
  struct Held {
    int items = 0;
    size_t bytes = 0;
    void add(size_t more) { ++items, bytes += more; }
    void remove(size_t less) { --items, bytes -= less; }
  };
  struct Waiting {
    uint64_t cost;
    T item;
  };
  struct Lane {
    uint64_t served = 0;  // cost
    Held held;
    std::deque<Waiting> waiting;
  };

  static bool fits(const Held& held, size_t bytes, const QueueLimits& limits) {
    return held.items < limits.items && bytes <= limits.bytes && held.bytes <= limits.bytes - bytes;
  }
  void forget_idle_lanes() {
    std::erase_if(lanes_, [&](const auto& entry) {
      return entry.second.held.items == 0 && entry.second.served <= now_;
    });
  }

  const QueueLimits all_, of_owner_;
  std::map<std::string, Lane> lanes_;
  Held held_;
  uint64_t now_ = 0;  // cost that the lane served last had had before
  int num_waiting_ = 0;
};

}  // namespace sparrow
