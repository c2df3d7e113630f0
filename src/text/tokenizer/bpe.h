// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE of one word, and a cache of words already done.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sparrow {

// Immutable after it is built; any number of threads may encode with it.
class Bpe {
 public:
  struct Merge {
    int32_t left, right, merged;
  };

  Bpe() = default;
  static constexpr size_t kMaxMerges = size_t{1} << 24;

  // `merges` in order of rank, the first one is done first; of two merges of one pair the later one counts.
  // At most kMaxMerges.
  Bpe(const std::array<int32_t, 256>& byte_ids, std::span<const Merge> merges);

  // Appends the ids of `word`. Time is about linear in its length, whatever it is made of.
  void encode(std::string_view word, std::vector<int32_t>& ids) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Entry {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNoRank;
    int32_t merged = -1;
  };

  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t home_of(uint64_t pair) const { return static_cast<size_t>(pair * 0x9E3779B97F4A7C15u >> shift_); }
  // The entry of the pair; one without rank if it never merges.
  const Entry& find(int32_t left, int32_t right) const {
    const uint64_t pair = pair_of(left, right);
    for (size_t i = home_of(pair);; i = (i + 1) & mask_)
      if (table_[i].pair == pair || table_[i].rank == kNoRank) return table_[i];
  }
  void encode_short(std::string_view word, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view word, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_{};
  std::vector<Entry> table_;  // open addressing, at most half full
  size_t mask_ = 0;
  int shift_ = 0;
};

// Remembers the ids of short words; a new word takes the place of an old one. One thread at a time.
class WordCache {
 public:
  // The first and the last eight bytes of a word, which overlap if it is shorter than sixteen. With its size
  // they are all of such a word: most words are compared without a loop.
  struct Key {
    uint64_t first = 0, last = 0;
    uint32_t slot = 0;
  };

  WordCache() : slots_(kSlots) {}

  static Key key_of(std::string_view word);
  // Starts to load what lookup() will read.
  void prefetch(const Key& key) const {
    __builtin_prefetch(&slots_[key.slot]);
    __builtin_prefetch(&slots_[key.slot ^ 1]);
  }
  // Appends the ids if the word is known.
  bool lookup(std::string_view word, const Key& key, std::vector<int32_t>& ids) const;
  void store(std::string_view word, const Key& key, std::span<const int32_t> ids);

 private:
  static constexpr size_t kSlots = 1 << 17;  // 8 MiB: a large text has some 100,000 different words
  static constexpr size_t kMaxBytes = 30, kMaxIds = 8, kEnd = 8;
  struct alignas(64) Slot {  // one cache line
    uint64_t first = 0, last = 0;
    uint8_t size = 0;
    uint8_t num_ids = 0;
    char middle[kMaxBytes - 2 * kEnd] = {};
    int32_t ids[kMaxIds] = {};
  };

  std::vector<Slot> slots_;
};

}  // namespace sparrow
