// SPDX-License-Identifier: Apache-2.0
// Prompts with pictures: an output depends on its request alone, whatever is encoded with it, wherever chunks
// and blocks end, with whatever the prefix cache and the feature memory still hold, on one rank and on
// several.
#include <gtest/gtest.h>

#include "support/engine/equality_scenario.h"
#include "support/engine/thread_ranks.h"

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

// The same pictures in every group of a grid, encoded there.
class EncodedPictures {
 public:
  EncodedPictures(EngineModel& model, const Grid& grid)
      : ranks_(model.config(), model.weights(), kBlockTokens, grid) {
    for (int picture = 0; picture < EngineModel::kNumPictures; ++picture) model.add_picture(prompt_, picture);
    std::vector<Sequence> sequences;
    std::vector<Sequence*> all;
    sequences.reserve(static_cast<size_t>(grid.dp));
    for (int group = 0; group < grid.dp; ++group) {
      Sequence& sequence = sequences.emplace_back(Sequence{.ids = prompt_.ids, .blocks = BlockTable(pool_)});
      sequence.segments = media_of(prompt_.media, 0, model.config().vision, "").segments;
      sequence.group = group;
      all.push_back(&sequence);
    }
    jobs_ = FeatureStore(4096, Sequence::kNoEnd, grid.dp).plan(all);
    ranks_.on_all([&](int, CpuRunner& runner) { runner.encode(jobs_); });
  }

  const std::vector<EncodeJob>& jobs() const { return jobs_; }
  CpuRunner& rank(int rank) { return ranks_.at(rank); }
  // As a rank has them, picture after picture.
  std::vector<std::byte> features(int rank, int group) {
    std::vector<std::byte> bytes;
    for (const EncodeJob& job : jobs_)
      for (size_t i = 0; i < job.rows.size() && job.group == group; ++i) {
        const Tensor token = ranks_.at(rank).features().rows_at(job.rows[i], 1);
        const auto* const begin = static_cast<const std::byte*>(token.data);
        bytes.insert(bytes.end(), begin, begin + token.cols() * static_cast<int64_t>(size_of(token.dtype)));
      }
    return bytes;
  }

 private:
  EngineModel::Prompt prompt_;
  BlockPool pool_{1};
  test::ThreadRanks ranks_;
  std::vector<EncodeJob> jobs_;
};

// Whatever group needs a picture, one rank of the grid encodes it, and all ranks of that group have the
// features that one rank alone would have.
TEST_P(MediaOnRanks, APictureIsEncodedOnce) {
  const Grid grid = GetParam();
  EngineModel model("vision/model", /*top_k_blocks=*/2);
  EncodedPictures alone(model, {}), together(model, grid);
  ASSERT_EQ(together.jobs().size(), alone.jobs().size() * static_cast<size_t>(grid.dp));
  int64_t encoded = 0;
  for (int rank = 0; rank < grid.world(); ++rank) {
    encoded += together.rank(rank).num_encoded();
    EXPECT_GT(together.rank(rank).num_encoded(), 0) << "rank " << rank;
    EXPECT_TRUE(together.features(rank, rank / grid.tp) == alone.features(0, 0)) << "rank " << rank;
  }
  EXPECT_EQ(encoded, std::ssize(together.jobs()));
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
