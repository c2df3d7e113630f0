// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "base/check.h"

namespace sparrow {
namespace {

// Up to here trying every pair for each merge is faster than keeping them in order.
constexpr size_t kShortWord = 96;

// Positions of the pairs of each rank. The lowest rank comes first; inside a rank, positions go from left to
// right. A pair that has gone since is for the caller to notice.
class PairQueue {
 public:
  void push(uint32_t rank, uint32_t position) {
    const auto [entry, is_new] = bucket_of_.try_emplace(rank, static_cast<uint32_t>(buckets_.size()));
    if (is_new) {
      buckets_.emplace_back();
      ranks_.push(rank);
    }
    buckets_[entry->second].push_back(position);
  }

  bool empty() const { return ranks_.empty(); }
  uint32_t lowest_rank() const { return ranks_.top(); }

  // All positions of the lowest rank, which leaves the queue.
  std::vector<uint32_t> pop() {
    const auto entry = bucket_of_.find(ranks_.top());
    std::vector<uint32_t> positions = std::move(buckets_[entry->second]);
    bucket_of_.erase(entry);
    ranks_.pop();
    if (!std::is_sorted(positions.begin(), positions.end())) std::sort(positions.begin(), positions.end());
    return positions;
  }

 private:
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks_;
  std::unordered_map<uint32_t, uint32_t> bucket_of_;
  std::vector<std::vector<uint32_t>> buckets_;
};

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges) : byte_ids_(byte_ids) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * merges.size(), 16));
  table_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    size_t i = home_of(pair);
    while (table_[i].rank != kNoRank && table_[i].pair != pair) i = (i + 1) & mask_;
    table_[i] = {pair, static_cast<uint32_t>(rank), merges[rank].merged};
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() <= kShortWord)
    encode_short(word, ids);
  else
    encode_long(word, ids);
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& ids) const {
  int32_t symbols[kShortWord];
  const Entry* merges[kShortWord];  // merges[i] joins symbols i and i + 1
  size_t n = word.size();
  for (size_t i = 0; i < n; ++i) symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = &find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    uint32_t best_rank = merges[0]->rank;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i]->rank >= best_rank) continue;
      best = i;
      best_rank = merges[i]->rank;
    }
    if (best_rank == kNoRank) break;
    symbols[best] = merges[best]->merged;
    --n;
    std::copy(symbols + best + 2, symbols + n + 1, symbols + best + 1);
    if (best + 1 < n) {
      std::copy(merges + best + 2, merges + n, merges + best + 1);
      merges[best] = &find(symbols[best], symbols[best + 1]);
    }
    if (best > 0) merges[best - 1] = &find(symbols[best - 1], symbols[best]);
  }
  ids.insert(ids.end(), symbols, symbols + n);
}

void Bpe::encode_long(std::string_view word, std::vector<int32_t>& ids) const {
  constexpr uint32_t kNone = UINT32_MAX;
  SPARROW_CHECK(word.size() < kNone);
  const auto n = static_cast<uint32_t>(word.size());
  struct Symbol {
    int32_t id;  // -1: became part of the symbol before
    uint32_t previous, next;
    uint32_t rank;  // of the pair that starts here
  };
  std::vector<Symbol> symbols(n);
  for (uint32_t i = 0; i < n; ++i)
    symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], i == 0 ? kNone : i - 1,
                  i + 1 == n ? kNone : i + 1, kNoRank};
  PairQueue queue;
  const auto refresh = [&](uint32_t i) {
    Symbol& s = symbols[i];
    s.rank = s.next == kNone ? kNoRank : find(s.id, symbols[s.next].id).rank;
    if (s.rank != kNoRank) queue.push(s.rank, i);
  };
  for (uint32_t i = 0; i < n; ++i) refresh(i);
  while (!queue.empty()) {
    const uint32_t rank = queue.lowest_rank();
    const std::vector<uint32_t> positions = queue.pop();
    for (size_t k = 0; k < positions.size(); ++k) {
      const uint32_t i = positions[k];
      Symbol& s = symbols[i];
      if (s.id < 0 || s.rank != rank) continue;  // merged away, or another pair by now
      Symbol& right = symbols[s.next];
      s.id = find(s.id, right.id).merged;
      right.id = -1;
      s.next = right.next;
      if (s.next != kNone) symbols[s.next].previous = i;
      refresh(i);
      if (s.previous != kNone) refresh(s.previous);
      // Merge lists made by hand may rank a pair before one of its parts: then the rest of this rank waits.
      if (queue.empty() || queue.lowest_rank() >= rank) continue;
      for (size_t rest = k + 1; rest < positions.size(); ++rest)
        if (symbols[positions[rest]].id >= 0 && symbols[positions[rest]].rank == rank)
          queue.push(rank, positions[rest]);
      break;
    }
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids.push_back(symbols[i].id);
}

WordCache::Ends WordCache::ends_of(std::string_view word) {
  Ends ends;
  const char* p = word.data();
  const size_t n = word.size();
  if (n >= kEnd) {
    std::memcpy(&ends.first, p, kEnd);
    std::memcpy(&ends.last, p + n - kEnd, kEnd);
  } else if (n >= 4) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    ends.first = static_cast<uint64_t>(high) << 32 | low;
  } else {
    for (size_t i = 0; i < n; ++i) ends.first = ends.first << 8 | static_cast<unsigned char>(p[i]);
  }
  return ends;
}

size_t WordCache::slot_of(const Ends& ends, size_t size) {
  const uint64_t mixed = (ends.first ^ (ends.last + size) * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
  return static_cast<size_t>((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u >> (64 - std::countr_zero(kSlots)));
}

bool WordCache::lookup(std::string_view word, std::vector<int32_t>& ids) const {
  if (word.size() > kMaxBytes) return false;
  const Ends ends = ends_of(word);
  const size_t home = slot_of(ends, word.size());
  for (const size_t i : {home, home ^ 1}) {
    const Slot& slot = slots_[i];
    if (slot.size != word.size() || slot.ends != ends) continue;
    if (slot.size > 2 * kEnd && std::memcmp(slot.middle, word.data() + kEnd, slot.size - 2 * kEnd) != 0)
      continue;
    if (slot.num_ids == 1)
      ids.push_back(slot.ids[0]);
    else
      ids.insert(ids.end(), slot.ids, slot.ids + slot.num_ids);
    return true;
  }
  return false;
}

void WordCache::store(std::string_view word, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxBytes || ids.size() > kMaxIds) return;
  const Ends ends = ends_of(word);
  const size_t home = slot_of(ends, word.size());
  Slot& slot = slots_[home];
  // The word that was here gets a second chance next door.
  slots_[home ^ 1] = slot;
  slot.ends = ends;
  slot.size = static_cast<uint8_t>(word.size());
  slot.num_ids = static_cast<uint8_t>(ids.size());
  if (word.size() > 2 * kEnd) std::memcpy(slot.middle, word.data() + kEnd, word.size() - 2 * kEnd);
  std::copy(ids.begin(), ids.end(), slot.ids);
}

}  // namespace sparrow
