// SPDX-License-Identifier: Apache-2.0
// PartTree: sums in parts on a GPU. The columns of a product are cut into equal parts, each part's product is
// f32 rows of its own, and the parts are added in a binary tree, ((0 + 1) + (2 + 3)) + ... Ranks that hold
// some of the parts each, and add up over ranks in the same tree, get the bits of one that holds all. Host
// arithmetic only: no CUDA.
//
// Parts are made one after the other, and each is added to those before it that it completes: part 3 to part
// 2, and that to the sum of 0 and 1. So few of them wait at a time, each in a slot.
#pragma once

#include <bit>

namespace sparrow::ops::cuda {

inline constexpr int kMaxTreeSlots = 4;  // of 8 parts

struct PartTree {
  int parts = 0;                     // a power of two; 0: the product is not made in parts
  float* slots[kMaxTreeSlots] = {};  // [rows, n] each; the first gets the sum of all parts
};

constexpr int tree_slots(int parts) {
  return std::bit_width(static_cast<unsigned>(parts));
}
constexpr bool is_part_count(int parts) {
  return parts > 0 && std::has_single_bit(static_cast<unsigned>(parts)) && tree_slots(parts) <= kMaxTreeSlots;
}

// A part's rows stand in `slot`, and are added to those of so many slots before it, the nearest first: the
// sum is left in the last of them.
struct PartStep {
  int slot = 0, merges = 0;

  constexpr int result() const { return slot - merges; }
};
constexpr PartStep part_step(int part) {
  const auto bits = static_cast<unsigned>(part);
  return {std::popcount(bits), std::countr_one(bits)};
}

}  // namespace sparrow::ops::cuda
