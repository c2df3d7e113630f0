// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "base/check.h"
#include "base/math.h"

namespace sparrow {
namespace {

// Up to here looking at every pair for each merge is faster than keeping them in order.
constexpr size_t kShortWord = 128;
// A short word's pair as one number: the rank, then the position, so that the least number is the pair to
// merge.
constexpr int kPositionBits = std::countr_zero(kShortWord);
constexpr int32_t kNoPair = INT32_MAX;
static_assert(Bpe::kMaxMerges << kPositionBits <= size_t{1} << 31);  // at the last position no pair starts

// Positions of the pairs of each rank. The lowest rank comes first; inside a rank, positions go from left to
// right. A pair that has gone since is for the caller to notice.
class PairQueue {
 public:
  void push(uint32_t rank, uint32_t position) {
    Recent& recent = recent_[rank % kRecent];
    if (recent.rank != rank) recent = {rank, bucket_of(rank)};
    buckets_[recent.bucket].push_back(position);
  }

  bool empty() const { return ranks_.empty(); }
  uint32_t lowest_rank() const { return ranks_.top(); }

  // All positions of the lowest rank, which leaves the queue.
  std::vector<uint32_t> pop() {
    const auto entry = bucket_of_.find(ranks_.top());
    std::vector<uint32_t> positions = std::move(buckets_[entry->second]);
    recent_[entry->first % kRecent] = {};
    bucket_of_.erase(entry);
    ranks_.pop();
    if (!std::is_sorted(positions.begin(), positions.end())) std::sort(positions.begin(), positions.end());
    return positions;
  }

 private:
  static constexpr size_t kRecent = 64;  // long words repeat themselves: few ranks take most pairs
  struct Recent {
    uint32_t rank = UINT32_MAX, bucket = 0;
  };

  uint32_t bucket_of(uint32_t rank) {
    const auto [entry, is_new] = bucket_of_.try_emplace(rank, static_cast<uint32_t>(buckets_.size()));
    if (is_new) {
      buckets_.emplace_back();
      ranks_.push(rank);
    }
    return entry->second;
  }

  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks_;
  std::unordered_map<uint32_t, uint32_t> bucket_of_;
  std::vector<std::vector<uint32_t>> buckets_;
  std::array<Recent, kRecent> recent_;
};

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges) : byte_ids_(byte_ids) {
  SPARROW_CHECK(merges.size() <= kMaxMerges);
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
  constexpr size_t kLanes = 4;            // the search for the least runs in whole vectors
  alignas(16) int32_t pairs[kShortWord];  // of the symbol that starts at this byte with the one after it
  int32_t symbols[kShortWord], merged[kShortWord];
  uint8_t next[kShortWord], previous[kShortWord + 1];
  const size_t n = word.size();
  const auto refresh = [&](size_t i) {
    const Entry& entry = find(symbols[i], symbols[next[i]]);
    pairs[i] = entry.rank == kNoRank ? kNoPair : static_cast<int32_t>(entry.rank << kPositionBits | i);
    merged[i] = entry.merged;
  };
  for (size_t i = 0; i < n; ++i) {
    symbols[i] = byte_ids_[static_cast<unsigned char>(word[i])];
    next[i] = static_cast<uint8_t>(i + 1);
    previous[i + 1] = static_cast<uint8_t>(i);
  }
  for (size_t i = 0; i + 1 < n; ++i) refresh(i);
  const size_t padded = round_up(n, kLanes);
  std::fill(pairs + std::max<size_t>(n, 1) - 1, pairs + padded, kNoPair);
  while (true) {
    int32_t least = kNoPair;
    for (size_t i = 0; i < padded; ++i) least = std::min(least, pairs[i]);
    if (least == kNoPair) break;
    const size_t i = static_cast<size_t>(least) % kShortWord, gone = next[i];
    symbols[i] = merged[i];
    pairs[gone] = kNoPair;
    next[i] = next[gone];
    previous[next[i]] = static_cast<uint8_t>(i);
    if (next[i] < n)
      refresh(i);
    else
      pairs[i] = kNoPair;
    if (i > 0) refresh(previous[i]);
  }
  for (size_t i = 0; i < n; i = next[i]) ids.push_back(symbols[i]);
}

void Bpe::encode_long(std::string_view word, std::vector<int32_t>& ids) const {
  SPARROW_CHECK(word.size() < UINT32_MAX);
  const auto n = static_cast<uint32_t>(word.size());
  // A symbol lies where its bytes do. Its first and its last place hold its size: both neighbours are found.
  struct Symbol {
    int32_t id;  // -1: inside another symbol
    uint32_t size;
  };
  std::vector<Symbol> symbols(n);
  for (uint32_t i = 0; i < n; ++i) symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], 1};
  // The pair that starts with the symbol at `i`; nullptr where there is none that merges.
  const auto pair_at = [&](uint32_t i) -> const Entry* {
    const uint32_t right = i + symbols[i].size;
    if (right == n) return nullptr;
    const Entry& entry = find(symbols[i].id, symbols[right].id);
    return entry.rank == kNoRank ? nullptr : &entry;
  };
  PairQueue queue;
  const auto refresh = [&](uint32_t i) {
    if (const Entry* pair = pair_at(i)) queue.push(pair->rank, i);
  };
  for (uint32_t i = 0; i < n; ++i) refresh(i);
  while (!queue.empty()) {
    const uint32_t rank = queue.lowest_rank();
    const std::vector<uint32_t> positions = queue.pop();
    for (size_t k = 0; k < positions.size(); ++k) {
      const uint32_t i = positions[k];
      if (symbols[i].id < 0) continue;  // merged away
      const Entry* pair = pair_at(i);
      if (pair == nullptr || pair->rank != rank) continue;  // another pair by now
      const uint32_t right = i + symbols[i].size, size = symbols[i].size + symbols[right].size;
      symbols[right].id = -1;
      symbols[i + size - 1].size = size;
      symbols[i] = {pair->merged, size};
      refresh(i);
      if (i > 0) refresh(i - symbols[i - 1].size);
      // Merge lists made by hand may rank a pair before one of its parts: then the rest of this rank waits.
      if (queue.empty() || queue.lowest_rank() >= rank) continue;
      for (size_t rest = k + 1; rest < positions.size(); ++rest) queue.push(rank, positions[rest]);
      break;
    }
  }
  for (uint32_t i = 0; i < n; i += symbols[i].size) ids.push_back(symbols[i].id);
}

WordCache::Key WordCache::key_of(std::string_view word) {
  Key key;
  const char* p = word.data();
  const size_t n = word.size();
  if (n >= kEnd) {
    std::memcpy(&key.first, p, kEnd);
    std::memcpy(&key.last, p + n - kEnd, kEnd);
  } else if (n >= 4) {
    uint32_t low, high;
    std::memcpy(&low, p, 4);
    std::memcpy(&high, p + n - 4, 4);
    key.first = static_cast<uint64_t>(high) << 32 | low;
  } else if (n > 0) {  // all of one, two or three bytes
    const auto byte = [p](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(p[i])); };
    key.first = byte(0) << 16 | byte(n / 2) << 8 | byte(n - 1);
  }
  const uint64_t mixed = (key.first ^ (key.last + n) * 0xD6E8FEB86659FD93u) * 0x9E3779B97F4A7C15u;
  key.slot =
      static_cast<uint32_t>((mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u >> (64 - std::countr_zero(kSlots)));
  return key;
}

bool WordCache::lookup(std::string_view word, const Key& key, std::vector<int32_t>& ids) const {
  if (word.size() > kMaxBytes) return false;
  for (const uint32_t i : {key.slot, key.slot ^ 1}) {
    const Slot& slot = slots_[i];
    if (slot.size != word.size() || slot.first != key.first || slot.last != key.last) continue;
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

void WordCache::store(std::string_view word, const Key& key, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kMaxBytes || ids.size() > kMaxIds) return;
  Slot& slot = slots_[key.slot];
  // The word that was here gets a second chance next door.
  slots_[key.slot ^ 1] = slot;
  slot.first = key.first;
  slot.last = key.last;
  slot.size = static_cast<uint8_t>(word.size());
  slot.num_ids = static_cast<uint8_t>(ids.size());
  if (word.size() > 2 * kEnd) std::memcpy(slot.middle, word.data() + kEnd, word.size() - 2 * kEnd);
  std::copy(ids.begin(), ids.end(), slot.ids);
}

}  // namespace sparrow
