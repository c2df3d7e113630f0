// SPDX-License-Identifier: Apache-2.0
// How ranks on GPUs exchange rows: which way is taken for which grid, and what is refused with what would do.
#include "model/exchange/exchange_way.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/m3_config.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

ModelConfig m3() {
  return parse_config(test::m3_config_json(), "").value();
}
std::string refusal(const Grid& grid, const ExchangeWay& way) {
  const Status status = check_exchange(m3(), grid, way);
  return status.ok() ? "" : status.error().message;
}
constexpr Grid kWholeExperts16{.tp = 8, .dp = 2, .expert_parallel = true};

TEST(ExchangeWay, OfANodeIsTheMemoryOfItsGpus) {
  EXPECT_EQ(exchange_way({}, 1, true), (ExchangeWay{.nccl = false, .num_nodes = 1}));
  for (const Grid& grid : {Grid{.tp = 2}, Grid{.tp = 8}, Grid{.tp = 4, .dp = 2}, Grid{.dp = 8}})
    EXPECT_FALSE(exchange_way(grid, 1, true).nccl) << describe(grid);
}

TEST(ExchangeWay, IsNcclOverNodesAndWhereItIsAskedFor) {
  EXPECT_EQ(exchange_way({.tp = 4, .dp = 2}, 2, true), (ExchangeWay{.nccl = true, .num_nodes = 2}));
  EXPECT_TRUE(exchange_way({.tp = 8}, 1, false).nccl);
  EXPECT_TRUE(exchange_way(kWholeExperts16, 1, true).nccl);  // kernels reach eight
  EXPECT_FALSE(exchange_way({}, 1, false).nccl);             // nobody to exchange with
}

TEST(ExchangeWay, RunsGridsWhoseGroupsAreOnOneNode) {
  EXPECT_EQ(refusal({.tp = 8}, {}), "");
  EXPECT_EQ(refusal(kWholeExperts16, {.nccl = true, .num_nodes = 2}), "");
  EXPECT_EQ(refusal({.tp = 4, .dp = 2}, {.nccl = true, .num_nodes = 2}), "");
  EXPECT_EQ(refusal({.tp = 8, .dp = 8, .expert_parallel = true}, {.nccl = true, .num_nodes = 8}), "");
}

TEST(ExchangeWay, SaysWhatItRefusesAndWhatWouldDo) {
  EXPECT_EQ(refusal({.tp = 8}, {.nccl = true, .num_nodes = 2}),
            "TP8 on 2 nodes: a step has two sums a layer over a group's GPUs, which are on one node, and 4 "
            "are on each; TP4 x DP2 would do");
  EXPECT_THAT(refusal({.tp = 8}, {.nccl = true, .num_nodes = 3}),
              HasSubstr("8 ranks cannot be shared by 3 nodes equally"));
  EXPECT_THAT(refusal(kWholeExperts16, {.nccl = false, .num_nodes = 1}), HasSubstr("more need NCCL"));
  EXPECT_EQ(refusal({.tp = 4, .dp = 16, .expert_parallel = true}, {.nccl = true, .num_nodes = 16}),
            "TP4 x DP16, expert-parallel: on GPUs 1, 2, 4 or 8 groups run together");
  EXPECT_EQ(refusal({.tp = 4, .dp = 16, .expert_parallel = true}, {.nccl = true, .num_nodes = 8}),
            "TP4 x DP16, expert-parallel: on GPUs 1, 2, 4 or 8 groups run together; TP8 x DP8, "
            "expert-parallel would do");
}

}  // namespace
}  // namespace sparrow
