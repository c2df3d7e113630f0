// SPDX-License-Identifier: Apache-2.0
// A sequence can be cancelled in every state, and leaves nothing behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/schedule/scheduler.h"
#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using test::iota;
using test::SchedulerBed;
using testing::ElementsAre;
using testing::Pair;

class SchedulerCancelTest : public testing::Test {
 protected:
  // Nothing of a sequence that has left may hold a block or a place.
  void expect_all_free() {
    EXPECT_TRUE(bed.scheduler.idle());
    EXPECT_EQ(bed.pool.num_in_use(), 0);
    EXPECT_EQ(bed.scheduler.stats().running, 0);
    EXPECT_EQ(bed.scheduler.stats().waiting, 0);
    const SequenceId id = bed.add({.prompt = bed.prompt(900), .max_total_tokens = 1000, .num_choices = 4});
    bed.step();
    EXPECT_TRUE(bed.running(id));
  }

  SchedulerBed bed{8, {.max_step_tokens = 300, .max_step_sequences = 4, .max_model_tokens = 4096}};
};

TEST_F(SchedulerCancelTest, InTheQueue) {
  EXPECT_TRUE(bed.scheduler.finish(bed.add(100)));
  expect_all_free();
}

TEST_F(SchedulerCancelTest, TwiceOrUnknown) {
  const SequenceId id = bed.add(100);
  EXPECT_FALSE(bed.scheduler.finish(id + 1));
  EXPECT_TRUE(bed.scheduler.finish(id));
  EXPECT_FALSE(bed.scheduler.finish(id));
  expect_all_free();
}

TEST_F(SchedulerCancelTest, BetweenChunksOfItsPrompt) {
  const SequenceId id = bed.add(500);
  bed.step();
  bed.scheduler.finish(id);
  EXPECT_EQ(bed.pool.num_cached(), 2);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, WhileDecoding) {
  const SequenceId id = bed.add(100);
  bed.step();
  bed.step();
  bed.scheduler.finish(id);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, WhileItsStepRuns) {
  const SequenceId id = bed.add(100), other = bed.add(100);
  bed.plan();
  bed.scheduler.finish(id);
  EXPECT_FALSE(bed.scheduler.finish(id));
  EXPECT_EQ(bed.at(id).state, SequenceState::kFinished);
  EXPECT_EQ(bed.pool.num_in_use(), 2);  // its blocks are being written
  bed.commit();
  EXPECT_EQ(bed.scheduler.find(id), nullptr);
  EXPECT_EQ(bed.pool.num_in_use(), 1);
  EXPECT_EQ(bed.at(other).num_tokens(), 101);
  bed.scheduler.finish(other);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, WhileAStepRunsWithoutIt) {
  const SequenceId id = bed.add(100), other = bed.add(100);
  bed.step();
  bed.scheduler.set_paused(id, true);
  bed.plan();
  bed.scheduler.finish(id);
  EXPECT_EQ(bed.scheduler.find(id), nullptr);
  bed.commit();
  bed.scheduler.finish(other);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, BeforeTheForkAndInTheStepOfTheFork) {
  bed.scheduler.finish(bed.add({.prompt = iota(100), .num_choices = 3}));
  const SequenceId id = bed.add({.prompt = iota(100), .num_choices = 3});
  bed.plan();
  bed.scheduler.finish(id);
  bed.commit();
  EXPECT_EQ(bed.scheduler.find(id + 1), nullptr);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, OneChoiceAndThenTheOthers) {
  const SequenceId id = bed.add({.prompt = iota(100), .num_choices = 3});
  bed.step();
  bed.scheduler.finish(id + 1);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(id, 1), Pair(id + 2, 1)));
  EXPECT_EQ(bed.copies.size(), 1u);
  bed.scheduler.finish(id);
  bed.scheduler.finish(id + 2);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, WhilePaused) {
  const SequenceId paused = bed.add(100), other = bed.add(600);
  bed.step();
  bed.scheduler.set_paused(paused, true);
  bed.scheduler.finish(paused);
  const SequenceId waits = bed.add(800, 100);  // for blocks that no paused sequence has
  bed.step();
  EXPECT_EQ(bed.why_waits(waits), WaitReason::kBlocks);
  bed.scheduler.finish(waits);
  bed.scheduler.finish(other);
  expect_all_free();
}

TEST_F(SchedulerCancelTest, AfterPausedAndPreempted) {
  const SequenceId a = bed.add(500, 400), b = bed.add(300, 400);
  for (int i = 0; i < 4; ++i) bed.step();
  bed.scheduler.set_paused(b, true);
  const SequenceId c = bed.add(300, 100);
  bed.step();
  EXPECT_FALSE(bed.running(b));
  for (const SequenceId id : {b, a, c}) EXPECT_TRUE(bed.scheduler.finish(id));
  expect_all_free();
}

TEST_F(SchedulerCancelTest, WhileFollowing) {
  const SequenceId leader = bed.add({.prompt = iota(600)}), follower = bed.add({.prompt = iota(600, 7)});
  bed.step();
  EXPECT_EQ(bed.why_waits(follower), WaitReason::kSharedPrefix);
  bed.scheduler.finish(follower);
  bed.step();
  bed.scheduler.finish(leader);
  expect_all_free();
}

}  // namespace
}  // namespace sparrow
