// SPDX-License-Identifier: Apache-2.0
#include "comm/grid.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

TEST(Grid, RanksOfAGroupStandSideBySide) {
  const Grid grid{.tp = 4, .dp = 2, .rank = 6};
  EXPECT_EQ(grid.world(), 8);
  EXPECT_EQ(grid.group(), 1);
  EXPECT_EQ(grid.tp_rank(), 2);
  EXPECT_FALSE(grid.leads_group());
  EXPECT_TRUE((Grid{.tp = 4, .dp = 2, .rank = 4}).leads_group());
}

TEST(Grid, IsNamedByItsParts) {
  EXPECT_EQ(describe({.tp = 8}), "TP8");
  EXPECT_EQ(describe({.tp = 4, .dp = 2}), "TP4 x DP2");
  EXPECT_EQ(describe({.tp = 8, .dp = 2, .expert_parallel = true}), "TP8 x DP2, expert-parallel");
}

}  // namespace
}  // namespace sparrow
