// SPDX-License-Identifier: Apache-2.0
// The engine's scenarios on every grid, from the scheduler down to the exchange: outputs are those of one
// rank, and what ranks hold alike is compared after every step.
#include <gtest/gtest.h>

#include "support/engine/equality_scenario.h"

namespace sparrow {
namespace {

using test::Coverage;
using test::EngineModel;
using test::EqualityScenario;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumSeeds = 2;
#else
constexpr int kNumSeeds = 8;
#endif

class RanksEquality : public testing::TestWithParam<Grid> {};

TEST_P(RanksEquality, GreedyIdsAreThoseOfOneRank) {
  Coverage coverage;
  EngineModel model("yarn", /*top_k_blocks=*/2);
  for (uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EqualityScenario(model, seed, GetParam()).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(coverage.outputs, 2 * kNumSeeds);
}

INSTANTIATE_TEST_SUITE_P(Grids, RanksEquality,
                         testing::Values(Grid{.tp = 2}, Grid{.tp = 4}, Grid{.dp = 2}, Grid{.tp = 2, .dp = 2}),
                         [](const auto& grid) { return strf("TP{}DP{}", grid.param.tp, grid.param.dp); });

}  // namespace
}  // namespace sparrow
