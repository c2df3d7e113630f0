// SPDX-License-Identifier: Apache-2.0
// The tree of sums in parts as a GPU makes it, part after part in few slots, against the one of the CPU.
#include "ops/cuda/parts/part_tree.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/cpu/part_sums.h"

namespace sparrow::ops::cuda {
namespace {

// Parts as letters from `first` on, and sums of them as words.
std::string tree_of(int first, int parts) {
  std::vector<std::string> slots(kMaxTreeSlots);
  for (int part = 0; part < parts; ++part) {
    const PartStep step = part_step(part);
    EXPECT_LT(step.slot, tree_slots(parts));
    EXPECT_GE(step.result(), 0);
    std::string sum(1, static_cast<char>('a' + first + part));
    for (int m = 0; m < step.merges; ++m) sum = "(" + slots[step.slot - 1 - m] + "+" + sum + ")";
    slots[step.result()] = sum;
  }
  return slots[0];
}

TEST(PartTree, IsBinary) {
  EXPECT_EQ(tree_of(0, 1), "a");
  EXPECT_EQ(tree_of(0, 2), "(a+b)");
  EXPECT_EQ(tree_of(0, 4), "((a+b)+(c+d))");
  EXPECT_EQ(tree_of(0, 8), "(((a+b)+(c+d))+((e+f)+(g+h)))");
}

TEST(PartTree, RanksHaveItsBranches) {
  for (const int ranks : {2, 4, 8}) {
    std::vector<std::string> sums;
    for (int r = 0; r < ranks; ++r) sums.push_back(tree_of(r * 8 / ranks, 8 / ranks));
    for (int apart = 1; apart < ranks; apart *= 2)
      for (int r = 0; r < ranks; r += 2 * apart) sums[r] = "(" + sums[r] + "+" + sums[r + apart] + ")";
    EXPECT_EQ(sums[0], tree_of(0, 8)) << ranks;
  }
}

// f32, where another order gives another sum.
TEST(PartTree, HasTheBitsOfTheCpus) {
  for (const int parts : {1, 2, 4, 8}) {
    const auto part = [](int i) {
      return 1.0f / static_cast<float>(3 + 7 * i) * (i % 3 == 1 ? -1e3f : 1.0f);
    };
    float slots[kMaxTreeSlots] = {};
    for (int i = 0; i < parts; ++i) {
      const PartStep step = part_step(i);
      float sum = part(i);
      for (int m = 0; m < step.merges; ++m) sum = slots[step.slot - 1 - m] + sum;
      slots[step.result()] = sum;
    }
    std::vector<float> sums(16);
    cpu::PartSums(parts, 1).run(
        sums.data(), 1,
        [&](int first, int count, float* to) {
          for (int i = 0; i < count; ++i) to[i] = part(first + i);
        },
        [](float* to, const float* from) { *to += *from; });
    EXPECT_EQ(slots[0], sums[0]) << parts;
  }
}

TEST(PartTree, SlotsAreAsManyAsWaitAtATime) {
  EXPECT_EQ(tree_slots(1), 1);
  EXPECT_EQ(tree_slots(2), 2);
  EXPECT_EQ(tree_slots(8), kMaxTreeSlots);
  for (const int parts : {0, 3, 6, 16}) EXPECT_FALSE(is_part_count(parts)) << parts;
}

}  // namespace
}  // namespace sparrow::ops::cuda
