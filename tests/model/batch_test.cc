// SPDX-License-Identifier: Apache-2.0
#include "model/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sparrow {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int kBlocks = 10;  // of a group

// Three groups: two sequences, none, one.
Batch three_groups() {
  return {.ids = {7, 50, 51, 52, 9},
          .positions = {130, 4, 5, 6, 3},
          .slots = {2 * 128 + 2, 4, 5, 6, 23 * 128 + 3},
          .cu_seqlens_q = {0, 1, 4, 5},
          .seq_lens = {131, 7, 4},
          .block_table = {3, 2, -1, 0, -1, -1, 23, 29, 20},
          .max_blocks = 3,
          .logit_rows = {0, 2, 3, 4},
          .drawn_by = {},
          .group_sequences = {0, 2, 2, 3}};
}

TEST(GroupPart, HasTheRowsOfItsSequencesAndBlocksFromZeroOn) {
  const Batch first = group_part(three_groups(), 0, kBlocks);
  EXPECT_THAT(first.ids, ElementsAre(7, 50, 51, 52));
  EXPECT_THAT(first.positions, ElementsAre(130, 4, 5, 6));
  EXPECT_THAT(first.slots, ElementsAre(2 * 128 + 2, 4, 5, 6));
  EXPECT_THAT(first.cu_seqlens_q, ElementsAre(0, 1, 4));
  EXPECT_THAT(first.seq_lens, ElementsAre(131, 7));
  EXPECT_THAT(first.logit_rows, ElementsAre(0, 2, 3));
  EXPECT_THAT(first.drawn_by, IsEmpty());

  const Batch last = group_part(three_groups(), 2, kBlocks);
  EXPECT_THAT(last.ids, ElementsAre(9));
  EXPECT_THAT(last.slots, ElementsAre(3 * 128 + 3));
  EXPECT_THAT(last.cu_seqlens_q, ElementsAre(0, 1));
  EXPECT_THAT(last.seq_lens, ElementsAre(4));
  EXPECT_THAT(last.logit_rows, ElementsAre(0));
  EXPECT_THAT(last.block_table, ElementsAre(3, 9, 0));
  EXPECT_THAT(last.group_sequences, IsEmpty());
}

TEST(GroupPart, HasNoMoreColumnsOfBlocksThanItNeeds) {
  const Batch first = group_part(three_groups(), 0, kBlocks);
  EXPECT_EQ(first.max_blocks, 2);
  EXPECT_THAT(first.block_table, ElementsAre(3, 2, 0, -1));
}

TEST(GroupPart, OfAGroupWithoutWorkIsAWholeBatchWithoutRows) {
  const Batch none = group_part(three_groups(), 1, kBlocks);
  EXPECT_EQ(none.num_tokens(), 0);
  EXPECT_EQ(none.num_sequences(), 0);
  EXPECT_THAT(none.cu_seqlens_q, ElementsAre(0));
  EXPECT_THAT(none.block_table, IsEmpty());
  EXPECT_THAT(none.logit_rows, IsEmpty());
  EXPECT_EQ(none.max_blocks, 0);
}

// The draws are numbered over all groups: who drew what in the step before is known to its runner.
TEST(GroupPart, KeepsTheNumbersOfDraws) {
  Batch batch = three_groups();
  batch.drawn_by = {2, -1, -1, -1, 5};
  EXPECT_THAT(group_part(batch, 0, kBlocks).drawn_by, ElementsAre(2, -1, -1, -1));
  EXPECT_THAT(group_part(batch, 2, kBlocks).drawn_by, ElementsAre(5));
}

TEST(GroupPart, OfTheOnlyGroupIsTheBatch) {
  Batch batch = three_groups();
  batch.group_sequences.clear();
  ASSERT_EQ(batch.num_groups(), 1);
  const Batch all = group_part(batch, 0, 3 * kBlocks);
  EXPECT_EQ(all.ids, batch.ids);
  EXPECT_EQ(all.slots, batch.slots);
  EXPECT_EQ(all.cu_seqlens_q, batch.cu_seqlens_q);
  EXPECT_EQ(all.block_table, batch.block_table);
  EXPECT_EQ(all.logit_rows, batch.logit_rows);
}

TEST(GroupPart, OfAnEmptyBatchIsEmpty) {
  Batch batch{.cu_seqlens_q = {0}, .group_sequences = {0, 0, 0}};
  for (const int group : {0, 1}) {
    EXPECT_EQ(group_part(batch, group, kBlocks).num_tokens(), 0);
    EXPECT_THAT(group_part(batch, group, kBlocks).cu_seqlens_q, ElementsAre(0));
  }
}

TEST(GroupPartDeathTest, ABlockOfAnotherGroupIsABug) {
  Batch batch = three_groups();
  batch.block_table[0] = kBlocks;
  EXPECT_DEATH(group_part(batch, 0, kBlocks), "first_block");
}

TEST(GroupBegin, SaysWhereSequencesTokensAndLogitsOfAGroupBegin) {
  const Batch batch = three_groups();
  const int sequences[] = {0, 2, 2, 3}, tokens[] = {0, 4, 4, 5}, logits[] = {0, 3, 3, 4};
  for (int group = 0; group <= 3; ++group) {
    const GroupBegin begin = group_begin(batch, group);
    EXPECT_EQ(begin.sequence, sequences[group]);
    EXPECT_EQ(begin.token, tokens[group]);
    EXPECT_EQ(begin.logit, logits[group]);
  }
}

}  // namespace
}  // namespace sparrow
