// SPDX-License-Identifier: Apache-2.0
// Data-parallel groups: where a sequence starts, and that groups do not get in each other's way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/schedule/scheduler.h"
#include "engine/schedule/step_batch.h"
#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using test::iota;
using test::SchedulerBed;
using testing::ElementsAre;
using testing::Pair;

SchedulerLimits in_groups(int groups, int max_step_tokens = 512, int max_step_sequences = 64) {
  return {.groups = groups,
          .max_step_tokens = max_step_tokens,
          .max_step_sequences = max_step_sequences,
          .max_model_tokens = 1 << 20};
}

struct GroupsBed : SchedulerBed {
  explicit GroupsBed(int num_blocks, SchedulerLimits limits = in_groups(2))
      : SchedulerBed(num_blocks, limits) {}

  int group_of(SequenceId id) const { return running(id) ? at(id).group : -1; }
  // Adds a prompt like no other and runs it to its first token.
  int starts_in(int64_t num_tokens) { return starts_in({.prompt = prompt(num_tokens)}); }
  int starts_in(SequenceSpec spec) {
    const SequenceId id = add(std::move(spec));
    steps_to_first_token(id);
    return group_of(id);
  }
  // Until it has given way once.
  void step_until_preemption() {
    const int64_t before = scheduler.stats().preemptions;
    while (scheduler.stats().preemptions == before) step();
  }
};

TEST(SchedulerPlacement, GoesWhereMostBlocksAreAvailable) {
  GroupsBed bed(20);
  EXPECT_EQ(bed.starts_in(400), 0) << "all is equal: the first";
  EXPECT_EQ(bed.starts_in(200), 1);
  EXPECT_EQ(bed.starts_in(100), 1) << "4 blocks are in use in the first, 2 in the second";
  EXPECT_EQ(bed.starts_in(100), 1);
  EXPECT_EQ(bed.starts_in(100), 0) << "equal again, and one runs there, three here";
}

TEST(SchedulerPlacement, PromptsThatComeTogetherSpreadOverTheGroups) {
  GroupsBed bed(20, in_groups(4));
  const SequenceId first = bed.add(300);
  for (int i = 1; i < 8; ++i) bed.add(300);
  bed.step();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(bed.group_of(first + i), i % 4);
}

TEST(SchedulerPlacement, AKnownPrefixDecidesBeforeBlocks) {
  GroupsBed bed(20);
  const SequenceId known = bed.add({.prompt = iota(1300)});
  bed.steps_to_first_token(known);
  ASSERT_EQ(bed.group_of(known), 0);
  EXPECT_EQ(bed.starts_in({.prompt = iota(1300, 7)}), 0) << "11 blocks are in use in the first";
  EXPECT_EQ(bed.starts_in({.prompt = iota(1300, 7), .salt = "another's"}), 1);
  EXPECT_EQ(bed.scheduler.stats().groups[0].prefix_tokens_hit, 1280);
  EXPECT_EQ(bed.scheduler.stats().groups[1].prefix_tokens_hit, 0);
}

TEST(SchedulerPlacement, TheLongerPrefixDecides) {
  GroupsBed bed(20);
  std::vector<int32_t> longer = iota(1200);
  const SequenceId a = bed.add({.prompt = iota(600)}), b = bed.add({.prompt = bed.prompt(300)});
  bed.step();
  ASSERT_EQ(bed.group_of(a), 0);
  ASSERT_EQ(bed.group_of(b), 1);
  bed.scheduler.finish(a);
  // Scored prompts take nothing from the cache: this one computes all of it in the second group.
  const SequenceId hog = bed.add(18 * 128);
  const SequenceId c = bed.add({.prompt = longer, .score_prompt = true});
  bed.steps_to_first_token(c);
  ASSERT_EQ(bed.group_of(hog), 0);
  ASSERT_EQ(bed.group_of(c), 1);
  bed.scheduler.finish(hog);
  bed.scheduler.finish(b);
  EXPECT_EQ(bed.starts_in({.prompt = longer}), 1)
      << "with 10 blocks of the prefix in use, and the first empty";
}

// A system prompt that is known in one group must not draw everything there: from some sequences more on it
// is computed in the other as well, and then both have it.
TEST(SchedulerPlacement, APrefixThatAllShareIsSoonKnownInEveryGroup) {
  GroupsBed bed(200);
  const SequenceId first = bed.add({.prompt = iota(1000)});
  bed.steps_to_first_token(first);
  for (int i = 1; i < 40; ++i) bed.steps_to_first_token(bed.add({.prompt = iota(1000, i)}));
  const std::vector<GroupStats> groups = bed.scheduler.stats().groups;
  EXPECT_GE(groups[0].running, 18);
  EXPECT_GE(groups[1].running, 18);
  EXPECT_LE(groups[0].prefix_tokens_queried - groups[0].prefix_tokens_hit, 1000 + groups[0].running * 128);
  EXPECT_LE(groups[1].prefix_tokens_queried - groups[1].prefix_tokens_hit, 1000 + groups[1].running * 128);
}

TEST(SchedulerPlacement, ALongPrefixDrawsMoreThanAShortOne) {
  GroupsBed bed(400, in_groups(2, 4096));
  ASSERT_EQ(bed.starts_in({.prompt = iota(20'000)}), 0);
  for (int i = 1; i < 30; ++i) EXPECT_EQ(bed.starts_in({.prompt = iota(20'000, i)}), 0);
}

// Nothing runs: what the caches hold is not thrown out while there are free blocks elsewhere.
TEST(SchedulerPlacement, OneAfterTheOtherFillsAllCaches) {
  GroupsBed bed(20);
  for (int i = 0; i < 10; ++i) {
    const SequenceId id = bed.add(500);
    bed.steps_to_first_token(id);
    bed.scheduler.finish(id);
  }
  const std::vector<GroupStats> groups = bed.scheduler.stats().groups;
  EXPECT_EQ(groups[0].blocks_cached, 15);
  EXPECT_EQ(groups[1].blocks_cached, 15);
}

TEST(SchedulerPlacement, WhoWaitsForAPrefixStartsWhereItWasComputed) {
  GroupsBed bed(20);
  bed.starts_in(100);
  const SequenceId leader = bed.add({.prompt = iota(1000)});
  bed.step();
  const SequenceId follower = bed.add({.prompt = iota(1000, 7)});
  bed.plan();
  EXPECT_EQ(bed.why_waits(follower), WaitReason::kSharedPrefix);
  bed.commit();
  ASSERT_EQ(bed.group_of(leader), 1);
  bed.steps_to_first_token(follower);
  EXPECT_EQ(bed.group_of(follower), 1);
  EXPECT_EQ(bed.at(follower).num_cached_tokens, 896);
}

TEST(SchedulerGroups, AFullGroupDoesNotHoldUpTheOthers) {
  GroupsBed bed(10);
  const SequenceId known = bed.add({.prompt = iota(1100)});
  bed.steps_to_first_token(known);
  // Its prefix is in the first group, which has one block left.
  const SequenceId other = bed.add({.prompt = iota(1000, 7)});
  std::vector<int32_t> mostly_new = iota(1000);
  std::fill(mostly_new.begin() + 512, mostly_new.end(), 5);
  const SequenceId head = bed.add({.prompt = mostly_new});
  bed.step();
  EXPECT_EQ(bed.group_of(other), 0);
  EXPECT_EQ(bed.group_of(head), 1) << "it would need 4 blocks in the first";
}

TEST(SchedulerGroups, WhoFitsNowhereIsPassedOverAsWithOneGroup) {
  GroupsBed bed(10);
  bed.add(700);
  bed.add(700);
  bed.step();
  const SequenceId large = bed.add(600), small = bed.add(100);
  bed.step();
  EXPECT_EQ(bed.why_waits(large), WaitReason::kBlocks);
  EXPECT_EQ(bed.scheduler.waiting_info(large)->blocks_missing, 1);
  EXPECT_TRUE(bed.running(small));
  EXPECT_EQ(bed.at(large).num_overtaken, 1);
}

TEST(SchedulerGroups, EachHasItsOwnPlacesAndTokens) {
  GroupsBed bed(100, in_groups(2, /*max_step_tokens=*/64, /*max_step_sequences=*/2));
  const SequenceId first = bed.add(100);
  for (int i = 1; i < 5; ++i) bed.add(100);
  bed.step();
  EXPECT_THAT(bed.tokens,
              ElementsAre(Pair(first, 32), Pair(first + 2, 32), Pair(first + 1, 32), Pair(first + 3, 32)));
  EXPECT_EQ(bed.why_waits(first + 4), WaitReason::kSequences);
  bed.scheduler.finish(first + 1);
  bed.step();
  EXPECT_EQ(bed.group_of(first + 4), 1);
}

TEST(SchedulerGroups, ChoicesNeedPlacesInOneGroup) {
  GroupsBed bed(100, in_groups(2, 64, /*max_step_sequences=*/4));
  bed.add({.prompt = bed.prompt(50), .num_choices = 3});
  bed.add({.prompt = bed.prompt(50), .num_choices = 3});
  const SequenceId two = bed.add({.prompt = bed.prompt(50), .num_choices = 2});
  bed.step();
  EXPECT_EQ(bed.why_waits(two), WaitReason::kSequences) << "one place is left in each";
  const auto refused = bed.scheduler.add({.prompt = bed.prompt(50), .num_choices = 5}, bed.now);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("[1, 4]"));
}

TEST(SchedulerGroups, ChoicesStayWithTheirPrompt) {
  GroupsBed bed(20);
  bed.starts_in(100);
  const SequenceId first = bed.add({.prompt = bed.prompt(300), .num_choices = 3});
  bed.steps_to_first_token(first);
  bed.step();
  for (SequenceId id = first; id < first + 3; ++id) {
    EXPECT_EQ(bed.group_of(id), 1);
    EXPECT_EQ(bed.at(id).blocks.blocks()[0], bed.at(first).blocks.blocks()[0]);
  }
  EXPECT_THAT(bed.copies, testing::SizeIs(2)) << "of the partial block";
  for (const BlockCopy& copy : bed.copies) EXPECT_TRUE(copy.from >= 20 && copy.to >= 20);
}

TEST(SchedulerGroups, APromptMustFitIntoOneGroup) {
  GroupsBed bed(10);
  const auto refused = bed.scheduler.add({.prompt = bed.prompt(11 * 128)}, bed.now);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, testing::HasSubstr("11 blocks of a group's cache, which has 10"));
}

TEST(SchedulerGroups, BlocksAreTakenFromSequencesOfTheSameGroup) {
  GroupsBed bed(8);
  // The worst of all runs in the second group, alone.
  const SequenceId a = bed.add(300), worst = bed.add(300), b = bed.add(500);
  bed.step();
  ASSERT_EQ(bed.group_of(a), 0);
  ASSERT_EQ(bed.group_of(worst), 1);
  ASSERT_EQ(bed.group_of(b), 0);
  bed.step_until_preemption();
  EXPECT_EQ(bed.scheduler.stats().groups[0].preemptions, 1);
  EXPECT_TRUE(bed.running(a));
  EXPECT_TRUE(bed.running(worst));
}

TEST(SchedulerGroups, WhoGaveWayStartsAgainWhereThereIsRoom) {
  GroupsBed bed(8, {.groups = 2, .max_model_tokens = 1 << 20, .prefix_caching = false});
  const SequenceId a = bed.add(300), hog = bed.add(900), b = bed.add(500);
  bed.step();
  ASSERT_EQ(bed.group_of(a), 0);
  ASSERT_EQ(bed.group_of(hog), 1);
  ASSERT_EQ(bed.group_of(b), 0);
  bed.scheduler.finish(hog);
  bed.step_until_preemption();
  bed.step();
  EXPECT_EQ(bed.group_of(b), 1);
  EXPECT_GE(bed.at(b).blocks.blocks()[0], 8);
}

TEST(SchedulerGroups, APausedSequenceGivesItsBlocksOnlyWhereNoGroupHasRoom) {
  GroupsBed bed(10);
  const SequenceId paused = bed.add(1100);
  bed.steps_to_first_token(paused);
  bed.scheduler.set_paused(paused, true);
  EXPECT_EQ(bed.starts_in(700), 1);
  EXPECT_TRUE(bed.running(paused));
  EXPECT_EQ(bed.starts_in(700), 0);
  EXPECT_FALSE(bed.running(paused));
}

TEST(SchedulerGroups, WhatIsCancelledGivesItsBlocksToItsGroup) {
  GroupsBed bed(20);
  const SequenceId a = bed.add(600), b = bed.add(600);
  bed.step();
  bed.plan();
  bed.scheduler.finish(b);  // while the step runs
  EXPECT_EQ(bed.scheduler.stats().groups[1].blocks_in_use, 5);
  bed.commit();
  EXPECT_EQ(bed.scheduler.stats().groups[1].blocks_in_use, 0);
  EXPECT_EQ(bed.scheduler.stats().groups[0].blocks_in_use, 5);
  EXPECT_EQ(bed.scheduler.stats().blocks_total, 40);
  EXPECT_TRUE(bed.scheduler.finish(a));
}

TEST(SchedulerGroups, AStepHasOneGroupAfterTheOtherDecodesFirst) {
  GroupsBed bed(40);
  const SequenceId a = bed.add(300), b = bed.add(200);  // one in each
  bed.step();
  const SequenceId c = bed.add(300), d = bed.add(300);
  const StepPlan& plan = bed.plan();
  EXPECT_THAT(bed.tokens, ElementsAre(Pair(a, 1), Pair(d, 300), Pair(b, 1), Pair(c, 300)));
  Batch batch;
  fill_batch(plan.slices, batch, 2);
  EXPECT_THAT(batch.group_sequences, ElementsAre(0, 2, 4));
  EXPECT_EQ(group_part(batch, 1, 40).block_table[0], bed.at(b).blocks.blocks()[0] - 40);
  fill_batch(plan.slices, batch, 4);
  EXPECT_THAT(batch.group_sequences, ElementsAre(0, 2, 4, 4, 4)) << "some groups may have no work";
  bed.commit();
}

TEST(SchedulerGroups, AStepAheadKeepsTheOrderOfGroups) {
  GroupsBed bed(40);
  const SequenceId first = bed.add(100);
  for (int i = 1; i < 4; ++i) bed.add(100);
  bed.step();
  bed.plan();
  bed.scheduler.finish(first);
  const StepPlan* ahead = bed.scheduler.plan_ahead(bed.now);
  ASSERT_NE(ahead, nullptr);
  std::vector<std::pair<int, int>> groups_and_draws;
  for (const StepSlice& slice : ahead->slices)
    groups_and_draws.emplace_back(slice.sequence->group, slice.drawn_by);
  EXPECT_THAT(groups_and_draws, ElementsAre(Pair(0, 1), Pair(1, 2), Pair(1, 3)));
  bed.commit();
  bed.scheduler.commit(std::vector<int32_t>(3, 9));
}

}  // namespace
}  // namespace sparrow
