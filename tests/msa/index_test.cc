// SPDX-License-Identifier: Apache-2.0
// Selection: the rule by hand-made scores, and every instruction set against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "msa/reference.h"
#include "support/msa_cases.h"

namespace msa::testing {
namespace {

using ::testing::ElementsAre;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int kLengths[] = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

std::vector<Isa> all_isas() {
  std::vector<Isa> isas = fast_isas();
  isas.insert(isas.begin(), Isa::kScalar);
  return isas;
}

// Selection of the last query of a sequence whose blocks have the given scores, on every instruction set and
// type; they must agree. Everything is zero but channel 0.
std::vector<int32_t> select_from(const std::vector<float>& scores, const Selection& selection) {
  const int length = static_cast<int>(scores.size()) * kBlock;
  std::vector<int32_t> first;
  for (const Type type : {Type::kBF16, Type::kF32}) {
    Sequences sequences({.type = type, .heads = {1, 1}, .lengths = {length}, .values = Values::kIntegers});
    for (int token = 0; token < length; ++token)
      for (int channel = 0; channel < kHeadDim; ++channel)
        sequences.set_index_key(0, token, channel, channel == 0 ? scores[token / kBlock] : 0);
    for (int channel = 0; channel < kHeadDim; ++channel)
      sequences.set_index_query(0, length - 1, 0, channel, channel == 0 ? 1 : 0);
    const Step step = sequences.step({{0, length - 1, 1}});
    for (const Isa isa : all_isas()) {
      const std::vector<int32_t> selected = run_index(sequences, step, selection, isa);
      if (first.empty()) first = selected;
      EXPECT_EQ(selected, first) << name_of(isa);
    }
  }
  return first;
}

TEST(Selection, TakesTheHighestScoresAndReturnsThemAscending) {
  EXPECT_THAT(select_from({3, 9, -5, 7, 1, 8}, {.top_k = 3, .local_blocks = 0}), ElementsAre(1, 3, 5));
  EXPECT_THAT(select_from({3, 9, -5, 7, 1, 8}, {.top_k = 4, .local_blocks = 0}), ElementsAre(0, 1, 3, 5));
}

TEST(Selection, OwnBlockTakesAPlaceWhateverItsScore) {
  EXPECT_THAT(select_from({3, 9, -5, 7, 1, -80}, {.top_k = 3}), ElementsAre(1, 3, 5));
  EXPECT_THAT(select_from({3, 9, -5, 7, 1, -80}, {.top_k = 1}), ElementsAre(5));
}

TEST(Selection, EqualScoresGoToTheLowerBlock) {
  EXPECT_THAT(select_from({2, 7, 2, 7, 2, 7, 0}, {.top_k = 3}), ElementsAre(1, 3, 6));
  EXPECT_THAT(select_from({2, 7, 2, 7, 2, 7, 0}, {.top_k = 5}), ElementsAre(0, 1, 3, 5, 6));
  EXPECT_THAT(select_from({4, 4, 4, 4, 4, 4}, {.top_k = 2, .local_blocks = 0}), ElementsAre(0, 1));
}

TEST(Selection, NegativeZeroTiesWithZero) {
  EXPECT_THAT(select_from({-0.0f, 0.0f, -0.0f, 0.0f, 5}, {.top_k = 3}), ElementsAre(0, 1, 4));
}

TEST(Selection, FewerVisibleBlocksThanPlacesLeaveATailOfMinusOne) {
  EXPECT_THAT(select_from({1, 3, 2}, {.top_k = 5}), ElementsAre(0, 1, 2, -1, -1));
}

TEST(Selection, NaNScoresComeLastAndFillLeftPlacesByLowerBlock) {
  EXPECT_THAT(select_from({kNaN, -9, kNaN, -8, kNaN, 0}, {.top_k = 3}), ElementsAre(1, 3, 5));
  EXPECT_THAT(select_from({kNaN, -9, kNaN, -8, kNaN, 0}, {.top_k = 4}), ElementsAre(0, 1, 3, 5));
  EXPECT_THAT(select_from({kNaN, kNaN, kNaN, kNaN}, {.top_k = 2, .local_blocks = 0}), ElementsAre(0, 1));
}

TEST(Selection, InitBlocksTakePlacesBeforeScoredBlocks) {
  EXPECT_THAT(select_from({-3, -9, 5, 7, 1, 0}, {.top_k = 4, .local_blocks = 1, .init_blocks = 2}),
              ElementsAre(0, 1, 3, 5));
}

TEST(Selection, LocalBlocksOutrankInitBlocksAndTheNearestStay) {
  const std::vector<float> scores = {9, 8, 7, 6, 5, 4, 3, 2};
  EXPECT_THAT(select_from(scores, {.top_k = 3, .local_blocks = 5}), ElementsAre(5, 6, 7));
  EXPECT_THAT(select_from(scores, {.top_k = 3, .local_blocks = 2, .init_blocks = 3}), ElementsAre(2, 6, 7));
  EXPECT_THAT(select_from(scores, {.top_k = 3, .local_blocks = 3, .init_blocks = 3}), ElementsAre(5, 6, 7));
  EXPECT_THAT(select_from(scores, {.top_k = 6, .local_blocks = 7, .init_blocks = 4}),
              ElementsAre(2, 3, 4, 5, 6, 7));
}

// Scores are integers, so every order of summation gives the same and selections must be equal, ties
// included.
TEST(Index, SelectionEqualsReferenceForEveryForcingAndLengthWhenScoresAreExact) {
  for (const int length : kLengths) {
    Sequences sequences({.heads = {4, 2}, .lengths = {length}, .values = Values::kIntegers, .seed = 3});
    const int count = std::min(length, length > 2049 ? 3 : 6);
    const Step step = sequences.step({{0, length - count, count}});
    for (const int top_k : {1, 4, 16})
      for (const int local : {0, 1, 2, 3, 4, 16})
        for (const int init : {0, 1, 2}) {
          if (local > top_k) continue;
          const Selection selection = {.top_k = top_k, .local_blocks = local, .init_blocks = init};
          const std::vector<int32_t> expected = run_index(sequences, step, selection, Isa::kScalar);
          for (const Isa isa : fast_isas())
            ASSERT_EQ(run_index(sequences, step, selection, isa), expected)
                << name_of(isa) << " length " << length << " top_k " << top_k << " local " << local
                << " init " << init;
        }
  }
}

TEST(Index, SelectionEqualsReferenceForManyQueriesHeadsAndRequestsWhenScoresAreExact) {
  for (const int kv_heads : {1, 3, 4})
    for (const Type type : {Type::kBF16, Type::kF32}) {
      Sequences sequences({.type = type,
                           .heads = {kv_heads, kv_heads},
                           .lengths = {700, 1, 1500, 200},
                           .values = Values::kIntegers,
                           .seed = 5});
      const Step step = sequences.step({{0, 660, 40}, {1, 0, 1}, {2, 1499, 1}, {3, 0, 200}, {2, 0, 0}});
      for (const int local : {0, 1, 2}) {
        const Selection selection = {.top_k = 3, .local_blocks = local, .init_blocks = 0};
        const std::vector<int32_t> expected = run_index(sequences, step, selection, Isa::kScalar);
        for (const Isa isa : fast_isas())
          for (const int workers : {1, 3})
            ASSERT_EQ(run_index(sequences, step, selection, isa, workers), expected)
                << name_of(isa) << " kv heads " << kv_heads << " local " << local << " workers " << workers;
      }
    }
}

// Fails unless `selected` is a best choice up to `tolerance` in the scores.
void expect_nearly_best(const std::vector<float>& scores, const int32_t* selected, const Selection& selection,
                        float tolerance) {
  const int own = static_cast<int>(scores.size()) - 1;
  const int count = std::min(selection.top_k, own + 1);
  for (int i = 0; i < selection.top_k; ++i) {
    if (i >= count) {
      ASSERT_EQ(selected[i], -1);
      continue;
    }
    ASSERT_LE(selected[i], own);
    ASSERT_GT(selected[i], i == 0 ? -1 : selected[i - 1]);
  }
  ASSERT_EQ(selected[count - 1], own);
  float worst_chosen = INFINITY, best_left = -INFINITY;
  for (int block = 0; block < own; ++block) {
    if (std::count(selected, selected + count, block) > 0)
      worst_chosen = std::min(worst_chosen, scores[block]);
    else
      best_left = std::max(best_left, scores[block]);
  }
  ASSERT_GE(worst_chosen, best_left - tolerance);
}

TEST(Index, SelectionIsTheReferencesUpToRoundingForRealScores) {
  constexpr float kRounding = 1e-4f;  // scores are up to about 30, sums of 128 products in f32
  const Selection selection = {.top_k = 16};
  for (const Type type : {Type::kBF16, Type::kF32})
    for (const int length : kLengths) {
      Sequences sequences({.type = type, .heads = {2, 2}, .lengths = {length}, .seed = 7});
      const int count = std::min(length, 4);
      const Step step = sequences.step({{0, length - count, count}});
      for (const Isa isa : fast_isas()) {
        const std::vector<int32_t> selected = run_index(sequences, step, selection, isa);
        for (int row = 0; row < count; ++row)
          for (int head = 0; head < 2; ++head) {
            std::vector<float> scores((length - count + row) / kBlock + 1);
            const IndexParams params = sequences.index_params(step, selection, nullptr);
            reference::block_scores(step.plan, params, 0, row, head, scores.data());
            expect_nearly_best(scores, selected.data() + (row * 2 + head) * selection.top_k, selection,
                               kRounding);
          }
      }
    }
}

}  // namespace
}  // namespace msa::testing
