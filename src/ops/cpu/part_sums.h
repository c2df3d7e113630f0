// SPDX-License-Identifier: Apache-2.0
// Sums in parts: the columns of a product in equal parts, each summed for itself, and the parts in a binary
// tree, ((0 + 1) + (2 + 3)) + ... Ranks that hold some of the parts each, and add up in the same tree, get
// the bits of one that holds all.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sparrow::ops::cpu {

class PartSums {
 public:
  // Few rows take all parts of a weight row together, so that memory is read in long runs; many take one
  // part after the other, so that sums stay in the cache.
  PartSums(int parts, int64_t rows) : parts_(parts), together_(rows <= kRowsTogether ? parts : 1) {}

  int together() const { return together_; }
  // How many sums are alive at a time.
  int buffers() const {
    int levels = 1;
    for (int parts = parts_; parts > together_; parts /= 2) ++levels;
    return together_ - 1 + levels;
  }

  // Leaves the sum of all parts at `sums`, where buffers() of `size` elements are. leaf(first, count, to)
  // makes the sums of parts [first, first + count), `size` apart; add(to, from) adds one to another.
  template <typename Leaf, typename Add>
  void run(float* sums, int64_t size, const Leaf& leaf, const Add& add) const {
    run(0, parts_, sums, size, leaf, add);
  }

 private:
  static constexpr int64_t kRowsTogether = 64;

  template <typename Leaf, typename Add>
  void run(int first, int count, float* sums, int64_t size, const Leaf& leaf, const Add& add) const {
    if (count <= together_) {
      leaf(first, count, sums);
      for (int apart = 1; apart < count; apart *= 2)
        for (int part = 0; part < count; part += 2 * apart)
          add(sums + part * size, sums + (part + apart) * size);
      return;
    }
    run(first, count / 2, sums, size, leaf, add);
    run(first + count / 2, count / 2, sums + size, size, leaf, add);
    add(sums, sums + size);
  }

  int parts_, together_;
};

}  // namespace sparrow::ops::cpu
