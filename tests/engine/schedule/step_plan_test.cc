// SPDX-License-Identifier: Apache-2.0
// The rows that slices name, from the plan to the batch: which are scored, which are sampled, and whose token
// is still being drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_batch.h"
#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using test::SchedulerBed;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(StepPlan, OnlyTheLastRowOfAPromptIsSampled) {
  SchedulerBed bed(20, {.max_step_tokens = 16, .max_step_sequences = 16, .max_model_tokens = 4096});
  bed.add({.prompt = bed.prompt(20), .num_choices = 3});
  const StepSlice first = bed.plan().slices.at(0);
  EXPECT_EQ(first.num_draws(), 0);
  bed.commit();
  const StepSlice second = bed.plan().slices.at(0);
  EXPECT_EQ(second.first, 16);
  EXPECT_EQ(second.sampled.first, 3);
  EXPECT_EQ(second.sampled.count, 1);
  EXPECT_EQ(second.num_draws(), 3);
  bed.commit();
}

TEST(StepPlan, ScoresEveryRowOfAPromptButItsLast) {
  SchedulerBed bed(20, {.max_step_tokens = 16, .max_step_sequences = 16, .max_model_tokens = 4096});
  bed.add({.prompt = bed.prompt(33), .score_prompt = true});
  for (const int count : {16, 16, 0, 0}) {
    const StepSlice& slice = bed.plan().slices.at(0);
    EXPECT_EQ(slice.scored.first, 0);
    EXPECT_EQ(slice.scored.count, count) << "from token " << slice.first;
    bed.commit();
  }
}

// Choices are made of a prompt that is scored; one that gives way computes it again.
TEST(StepPlan, WhatIsComputedAgainIsNotScoredAgain) {
  SchedulerBed bed(4);
  const SequenceId first = bed.add({.prompt = bed.prompt(200), .num_choices = 2, .score_prompt = true});
  int scored = 0;
  const auto step = [&] {
    for (const StepSlice& slice : bed.plan().slices) scored += slice.scored.count;
    bed.commit();
  };
  while (bed.scheduler.stats().preemptions == 0) step();
  ASSERT_EQ(scored, 199);
  bed.scheduler.finish(first);
  const SequenceId second = first + 1;
  ASSERT_EQ(bed.at(second).num_computed, 0);
  while (bed.at(second).num_computed < 200) step();
  EXPECT_EQ(scored, 199);
}

TEST(StepPlan, AStepAheadNamesTheDrawsItsTokensComeFrom) {
  SchedulerBed bed(20);
  const SequenceId a = bed.add(10), b = bed.add(20), c = bed.add(30);
  bed.step();
  bed.plan();
  bed.scheduler.finish(b);
  const StepPlan* ahead = bed.scheduler.plan_ahead(bed.now);
  ASSERT_NE(ahead, nullptr);
  ASSERT_EQ(ahead->slices.size(), 2u);
  EXPECT_EQ(ahead->slices[0].sequence->id, a);
  EXPECT_EQ(ahead->slices[0].drawn_by, 0);
  EXPECT_EQ(ahead->slices[1].sequence->id, c);
  EXPECT_EQ(ahead->slices[1].drawn_by, 2);

  Batch batch;
  fill_batch(ahead->slices, batch);
  EXPECT_THAT(batch.drawn_by, ElementsAre(0, 2));
  EXPECT_THAT(batch.positions, ElementsAre(11, 31));
  EXPECT_THAT(batch.logit_rows, ElementsAre(0, 1));
  bed.commit();
  bed.scheduler.commit(std::vector<int32_t>(2, 9));
}

struct TwoSequences {
  TwoSequences() {
    for (Sequence* s : {&a, &b}) {
      s->ids = test::iota(300);
      EXPECT_TRUE(s->blocks.reserve(300));
    }
  }
  BlockPool pool{6};
  Sequence a{.ids = {}, .blocks = BlockTable(pool)}, b{.ids = {}, .blocks = BlockTable(pool)};
};

// Several drafts of a sequence are judged in one step by several rows that are sampled.
TEST(FillBatch, TakesTheScoredAndTheSampledRowsOfEverySlice) {
  TwoSequences s;
  const std::vector<StepSlice> slices = {
      {.sequence = &s.a, .first = 100, .num_tokens = 4, .sampled = {.first = 0, .count = 4}},
      {.sequence = &s.b,
       .first = 126,
       .num_tokens = 5,
       .scored = {.first = 1, .count = 2},
       .sampled = {.first = 4, .count = 1}}};
  Batch batch;
  fill_batch(slices, batch);
  EXPECT_THAT(batch.logit_rows, ElementsAre(0, 1, 2, 3, 5, 6, 8));
  EXPECT_THAT(batch.ids, ElementsAre(100, 101, 102, 103, 126, 127, 128, 129, 130));
  EXPECT_THAT(batch.cu_seqlens_q, ElementsAre(0, 4, 9));
  EXPECT_THAT(batch.seq_lens, ElementsAre(104, 131));
  EXPECT_THAT(batch.drawn_by, IsEmpty());
  EXPECT_EQ(batch.max_blocks, 3);
  for (int row = 0; row < 9; ++row)
    EXPECT_EQ(batch.slots[row], (row < 4 ? s.a : s.b).blocks.slot(batch.positions[row]));

  fill_batch({slices.data(), 1}, batch);
  EXPECT_EQ(batch.num_tokens(), 4) << "what was there is gone";
  EXPECT_THAT(batch.logit_rows, ElementsAre(0, 1, 2, 3));
}

TEST(StepPlan, WhatIsAppendedRunsWithTheTokenBeforeIt) {
  SchedulerBed bed(2);
  const SequenceId id = bed.add(100, /*max_tokens=*/60);
  bed.step();
  ASSERT_TRUE(bed.scheduler.append(id, test::iota(30)));
  const StepSlice slice = bed.plan().slices.at(0);
  EXPECT_FALSE(bed.scheduler.append(id, test::iota(1))) << "it runs";
  EXPECT_EQ(slice.first, 100);
  EXPECT_EQ(slice.num_tokens, 31);
  EXPECT_EQ(slice.sampled.first, 30);
  EXPECT_EQ(slice.num_draws(), 1);
  bed.commit();
  EXPECT_FALSE(bed.scheduler.append(id, test::iota(28))) << "the last id is drawn";
  EXPECT_TRUE(bed.scheduler.append(id, test::iota(27)));
  EXPECT_EQ(bed.at(id).num_tokens(), 159);
  EXPECT_FALSE(bed.scheduler.append(id + 1, test::iota(1)));
}

TEST(StepPlan, NothingIsAppendedWithoutABlockOfOnesOwn) {
  SchedulerBed bed(2);
  const SequenceId id = bed.add({.prompt = bed.prompt(120), .max_total_tokens = 200, .num_choices = 2});
  bed.step();
  EXPECT_FALSE(bed.scheduler.append(id, test::iota(4))) << "the block is the other choice's too";
  bed.step();
  EXPECT_TRUE(bed.scheduler.append(id, test::iota(4)));
  EXPECT_FALSE(bed.scheduler.append(id + 1, test::iota(20))) << "there is no block left";
  EXPECT_EQ(bed.at(id + 1).num_tokens(), 122);
}

}  // namespace
}  // namespace sparrow
