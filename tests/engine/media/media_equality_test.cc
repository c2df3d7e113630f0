// SPDX-License-Identifier: Apache-2.0
// Prompts with pictures: an output depends on its request alone, whatever is encoded with it, wherever chunks
// and blocks end, with whatever the prefix cache and the feature memory still hold, on one rank and on
// several.
#include <gtest/gtest.h>

#include "support/engine/equality_scenario.h"

namespace sparrow {
namespace {

using test::Coverage;
using test::EngineModel;
using test::EqualityScenario;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumSeeds = 8, kNumRankSeeds = 1;
#else
constexpr int kNumSeeds = 32, kNumRankSeeds = 3;
#endif

TEST(MediaEquality, GreedyIdsDependOnTheRequestAlone) {
  Coverage coverage;
  EngineModel model("vision/model", /*top_k_blocks=*/2);
  // Goes on until the rarest case was met: how soon that is depends on the ids, and so on the CPU.
  uint64_t seed = 0;
  for (; seed < kNumSeeds || (coverage.hits_inside_pictures == 0 && seed < 10 * kNumSeeds); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EqualityScenario(model, seed, {}, /*pictures=*/true).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  coverage.print(static_cast<int>(seed));
  EXPECT_GT(coverage.pictures, 3 * kNumSeeds);
  EXPECT_GT(coverage.encoded, coverage.pictures / 2);
  for (const int64_t count : {coverage.chunked, coverage.hits, coverage.forked, coverage.preemptions,
                              coverage.hits_inside_pictures})
    EXPECT_GT(count, 0);
}

class MediaOnRanks : public testing::TestWithParam<Grid> {};

TEST_P(MediaOnRanks, GreedyIdsAreThoseOfOneRank) {
  Coverage coverage;
  EngineModel model("vision/model", /*top_k_blocks=*/2);
  for (uint64_t seed = 0; seed < kNumRankSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    EqualityScenario(model, seed, GetParam(), /*pictures=*/true).run(coverage);
    ASSERT_EQ(coverage.mismatches, 0) << "an output differs from the one of its prompt alone";
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(coverage.encoded, kNumRankSeeds);
}

INSTANTIATE_TEST_SUITE_P(Grids, MediaOnRanks,
                         testing::Values(Grid{.tp = 2}, Grid{.dp = 2}, Grid{.tp = 2, .dp = 2}),
                         [](const auto& grid) { return strf("TP{}DP{}", grid.param.tp, grid.param.dp); });

// The numbers decide, not the placeholders: another picture in the same place is another prompt.
TEST(MediaEquality, AnotherPictureIsAnotherPrompt) {
  EngineModel model("vision/model", /*top_k_blocks=*/2);
  const auto logits_of = [&](int number) {
    EngineModel::Prompt prompt{model.text(0, 20), {}};
    model.add_picture(prompt, number);
    prompt.ids.push_back(7);
    return model.run_alone(prompt, 8).margins;
  };
  EXPECT_NE(logits_of(0), logits_of(1));
  EXPECT_EQ(logits_of(0), logits_of(0));
}

}  // namespace
}  // namespace sparrow
