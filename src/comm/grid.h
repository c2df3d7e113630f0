// SPDX-License-Identifier: Apache-2.0
// Grid: the ranks that run one model together, and which of them this one is. `dp` groups of `tp` ranks:
// attention, dense MLPs, vocabulary and cache are cut over a group, and each group has sequences of its own;
// experts are cut over all ranks, by channel or, expert-parallel, whole.
#pragma once

#include <string>

namespace sparrow {

struct Grid {
  int tp = 1;  // ranks of a group
  int dp = 1;  // groups
  bool expert_parallel = false;
  int rank = 0;  // group * tp + tp_rank

  int world() const { return tp * dp; }
  int group() const { return rank / tp; }
  int tp_rank() const { return rank % tp; }
  // Rank 0 schedules for all; the first of each group draws for its group.
  bool leads_group() const { return tp_rank() == 0; }

  bool operator==(const Grid&) const = default;
};

// "TP4 x DP2, expert-parallel", without the parts that are one.
std::string describe(const Grid& grid);

}  // namespace sparrow
