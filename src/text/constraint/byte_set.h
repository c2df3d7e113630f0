// SPDX-License-Identifier: Apache-2.0
// ByteSet: some of the 256 bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace sparrow {

class ByteSet {
 public:
  constexpr ByteSet() = default;
  static constexpr ByteSet range(int first, int last) {
    ByteSet set;
    for (int byte = first; byte <= last; ++byte) set.add(byte);
    return set;
  }

  constexpr void add(int byte) { words_[byte >> 6] |= uint64_t{1} << (byte & 63); }
  constexpr void add(const ByteSet& other) {
    for (int i = 0; i < 4; ++i) words_[i] |= other.words_[i];
  }
  constexpr bool has(int byte) const { return (words_[byte >> 6] >> (byte & 63) & 1) != 0; }
  constexpr int size() const {
    int count = 0;
    for (const uint64_t word : words_) count += std::popcount(word);
    return count;
  }
  constexpr bool holds(const ByteSet& other) const {
    for (int i = 0; i < 4; ++i)
      if ((other.words_[i] & ~words_[i]) != 0) return false;
    return true;
  }
  // The lowest byte; 256: there is none.
  constexpr int first() const {
    for (int i = 0; i < 4; ++i)
      if (words_[i] != 0) return 64 * i + std::countr_zero(words_[i]);
    return 256;
  }
  constexpr const std::array<uint64_t, 4>& words() const { return words_; }
  friend constexpr bool operator==(const ByteSet&, const ByteSet&) = default;

 private:
  std::array<uint64_t, 4> words_{};
};

}  // namespace sparrow
