// SPDX-License-Identifier: Apache-2.0
// What of a batch a rank of a GPU runs: every rank comes to the same shapes of all groups.
#include "engine/memory/rank_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kBlocks = 100, kMaxSequences = 24, kMaxColumns = 40;

// Groups of sequences with so many new tokens each; the last one of a sequence has logits.
Batch make_batch(const std::vector<std::vector<int>>& groups, int max_blocks = 1) {
  Batch batch;
  batch.cu_seqlens_q = {0};
  batch.max_blocks = max_blocks;
  batch.group_sequences = {0};
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int tokens : groups[g]) {
      for (int i = 0; i < tokens; ++i) {
        batch.ids.push_back(batch.num_tokens());
        batch.positions.push_back(i);
        batch.slots.push_back(static_cast<int64_t>(g) * kBlocks * 128 + i);
      }
      batch.cu_seqlens_q.push_back(batch.num_tokens());
      batch.seq_lens.push_back(tokens);
      batch.block_table.resize(batch.block_table.size() + static_cast<size_t>(max_blocks),
                               static_cast<int32_t>(g) * kBlocks);
      batch.logit_rows.push_back(batch.num_tokens() - 1);
    }
    batch.group_sequences.push_back(batch.num_sequences());
  }
  return batch;
}

RankStep step_of(const Batch& batch, int group, int groups, bool graphs = true) {
  return rank_step(batch, {.group = group,
                           .num_groups = groups,
                           .blocks_per_group = kBlocks,
                           .max_step_sequences = kMaxSequences,
                           .max_columns = kMaxColumns,
                           .graphs = graphs});
}

std::vector<int> rows_of(const RankStep& step) {
  std::vector<int> rows;
  for (const GroupShape& group : step.shape.groups) rows.push_back(group.rows);
  return rows;
}
std::vector<int> logits_of(const RankStep& step) {
  std::vector<int> logits;
  for (const GroupShape& group : step.shape.groups) logits.push_back(group.logits);
  return logits;
}

TEST(RankStepTest, OneGroupRunsTheBatchAsItIs) {
  Batch batch = make_batch({{1, 1, 5}});
  batch.group_sequences.clear();
  const RankStep step = step_of(batch, 0, 1);
  EXPECT_FALSE(step.replays);
  EXPECT_EQ(&step.batch(batch), &batch);
  EXPECT_EQ(step.shape.tokens(), 7);
  EXPECT_THAT(step.wanted_rows, ElementsAre(0, 1, 6));
  EXPECT_THAT(step.shape.groups, IsEmpty());
}

TEST(RankStepTest, DecodesOfAllGroupsArePaddedAlike) {
  const Batch batch = make_batch({{1, 1, 1}, {}, std::vector<int>(9, 1)}, 3);
  for (int group = 0; group < 3; ++group) {
    const RankStep step = step_of(batch, group, 3);
    EXPECT_TRUE(step.replays);
    EXPECT_THAT(rows_of(step), ElementsAre(10, 10, 10));
    EXPECT_THAT(logits_of(step), ElementsAre(10, 10, 10));
    EXPECT_EQ(step.shape.tokens(), 10);
    EXPECT_EQ(step.shape.logits, 10);
    EXPECT_EQ(step.shape.table_columns, 16);
    ASSERT_EQ(step.groups.size(), 3u);
    EXPECT_EQ(step.groups[0].rows, 3);
    EXPECT_THAT(step.groups[0].logit_rows, ElementsAre(0, 1, 2));
    EXPECT_THAT(step.groups[1].logit_rows, IsEmpty());
    EXPECT_EQ(step.first_logit, group == 2 ? 3 : group == 1 ? 3 : 0);
    EXPECT_EQ(step.wanted_rows.size(), batch.group_sequences[group + 1] - batch.group_sequences[group]);
    EXPECT_EQ(step.batch(batch).num_tokens(), step.groups[group].rows);
  }
}

TEST(RankStepTest, OneGroupsPromptKeepsAllFromAGraph) {
  const Batch batch = make_batch({{1, 1}, {1, 7}});
  for (int group = 0; group < 2; ++group) {
    const RankStep step = step_of(batch, group, 2);
    EXPECT_FALSE(step.replays);
    EXPECT_THAT(rows_of(step), ElementsAre(2, 8));
    EXPECT_THAT(logits_of(step), ElementsAre(2, 2));
    EXPECT_THAT(step.groups[1].logit_rows, ElementsAre(0, 7));
    EXPECT_EQ(step.shape.tokens(), group == 0 ? 2 : 8);
  }
}

TEST(RankStepTest, AGroupWithoutRowsJoinsWithARowOfPadding) {
  Batch batch = make_batch({{}, {4}});
  const RankStep step = step_of(batch, 0, 2);
  EXPECT_EQ(step.batch(batch).num_tokens(), 0);
  EXPECT_EQ(step.shape.decodes, 1);
  EXPECT_EQ(step.shape.tokens(), 1);
  EXPECT_EQ(step.shape.logits, 1);
  EXPECT_THAT(rows_of(step), ElementsAre(1, 4));
  EXPECT_EQ(step.groups[0].rows, 0);
  EXPECT_THAT(step.wanted_rows, IsEmpty());
  batch.logit_rows.clear();
  EXPECT_THAT(logits_of(step_of(batch, 1, 2)), ElementsAre(1, 1));
}

TEST(RankStepTest, ABatchWithoutGroupsIsTheFirstOnes) {
  Batch batch = make_batch({{3, 2}});
  batch.group_sequences.clear();
  EXPECT_EQ(step_of(batch, 0, 2).shape.tokens(), 5);
  EXPECT_EQ(step_of(batch, 1, 2).batch(batch).num_tokens(), 0);
  EXPECT_THAT(rows_of(step_of(batch, 1, 2)), ElementsAre(5, 1));
}

// Cached tokens of the group that has most decide, and whether anything is scanned at all.
TEST(RankStepTest, GroupsShareTheIndexTogether) {
  const auto shares = [](std::vector<int> lengths, bool prompts, int group = 0, int top_k_blocks = 3,
                         int queries = 3) {
    Batch batch = make_batch({{1, 1}, {1, queries}}, 17);
    batch.seq_lens.assign(lengths.begin(), lengths.end());
    RankStepLimits limits{.group = group,
                          .num_groups = 2,
                          .blocks_per_group = kBlocks,
                          .max_step_sequences = kMaxSequences,
                          .max_columns = kMaxColumns,
                          .shared_index_tokens = 2000,
                          .top_k_blocks = top_k_blocks,
                          .shares_prompts = prompts};
    const bool shared = rank_step(batch, limits).shape.shares_index;
    limits.shared_index_tokens.reset();
    EXPECT_FALSE(rank_step(batch, limits).shape.shares_index);
    return shared;
  };
  for (const int group : {0, 1}) {
    EXPECT_TRUE(shares({1500, 500, 10, 10}, false, group));
    EXPECT_TRUE(shares({10, 10, 2000, 10}, false, group));
  }
  EXPECT_FALSE(shares({1500, 499, 1999, 10}, false));
  EXPECT_FALSE(shares({1500, 500, 10, 10}, false, 0, 12));
  // A prompt's rows, where they cost less that way.
  EXPECT_FALSE(shares({10, 10, 1000, 1000}, false));
  EXPECT_TRUE(shares({10, 10, 1000, 1000}, true));
  // More queries have more use of each key.
  EXPECT_FALSE(shares({10, 10, 800, 500}, true, 0, 3, 16));
  EXPECT_TRUE(shares({10, 10, 500, 500}, true, 0, 3, 17));
}

}  // namespace
}  // namespace sparrow
