// SPDX-License-Identifier: Apache-2.0
// Sequences that share blocks or stop for a while: prefixes, choices, pauses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/schedule/scheduler.h"
#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using test::iota;
using test::SchedulerBed;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

TEST(SchedulerPrefix, AKnownPrefixIsNotComputedAgain) {
  SchedulerBed bed(20);
  const SequenceId a = bed.add({.prompt = iota(300)});
  bed.step();
  const SequenceId b = bed.add({.prompt = iota(300, 7)});
  EXPECT_THAT(bed.step(), ElementsAre(Pair(a, 1), Pair(b, 300 - 256)));
  EXPECT_EQ(bed.at(b).num_cached_tokens, 256);
  EXPECT_EQ(bed.at(b).blocks.blocks()[1], bed.at(a).blocks.blocks()[1]);
  EXPECT_NE(bed.at(b).blocks.blocks()[2], bed.at(a).blocks.blocks()[2]);
  EXPECT_EQ(bed.scheduler.stats().prefix_tokens_queried, 600);
  EXPECT_EQ(bed.scheduler.stats().prefix_tokens_hit, 256);
}

TEST(SchedulerPrefix, ABlockIsKnownOnlyWhenAllOfItIsComputed) {
  SchedulerBed bed(20, {.max_step_tokens = 127, .max_step_sequences = 2, .max_model_tokens = 4096});
  const SequenceId a = bed.add({.prompt = iota(300)});
  bed.step();
  EXPECT_EQ(bed.at(a).num_computed, 127);
  EXPECT_FALSE(bed.pool.is_kept(bed.at(a).blocks.blocks()[0]));
  bed.step();
  EXPECT_TRUE(bed.pool.is_kept(bed.at(a).blocks.blocks()[0]));
  EXPECT_FALSE(bed.pool.is_kept(bed.at(a).blocks.blocks()[1]));
}

TEST(SchedulerPrefix, IsFoundAfterItsSequenceHasEnded) {
  SchedulerBed bed(20);
  const SequenceId a = bed.add({.prompt = iota(300)});
  bed.step();
  bed.scheduler.finish(a);
  EXPECT_EQ(bed.pool.num_cached(), 2);
  const SequenceId b = bed.add({.prompt = iota(257)});
  EXPECT_THAT(bed.step(), ElementsAre(Pair(b, 1)));
}

TEST(SchedulerPrefix, AHitInsideABlockIsCopiedBeforeTheStep) {
  SchedulerBed bed(20);
  const SequenceId a = bed.add({.prompt = iota(256)});
  bed.step();
  const std::vector<BlockId> known(bed.at(a).blocks.blocks().begin(), bed.at(a).blocks.blocks().end());
  const SequenceId inside = bed.add({.prompt = iota(200)}), whole = bed.add({.prompt = iota(256)});
  EXPECT_THAT(bed.step(), UnorderedElementsAre(Pair(a, 1), Pair(inside, 1), Pair(whole, 1)));
  EXPECT_EQ(bed.at(inside).num_cached_tokens, 199);
  EXPECT_EQ(bed.at(whole).num_cached_tokens, 255);
  ASSERT_EQ(bed.copies.size(), 2u);
  for (const BlockCopy& copy : bed.copies) {
    EXPECT_EQ(copy.from, known[1]);
    EXPECT_EQ(bed.pool.num_owners(copy.to), copy == bed.copies[0]);  // the second has known[1] again by now
  }
}

TEST(SchedulerPrefix, APromptWhoseBlocksAreTheWholePoolStillRuns) {
  SchedulerBed bed(4);
  const SequenceId a = bed.add({.prompt = iota(512), .max_total_tokens = 513});
  bed.step();
  bed.scheduler.finish(a);
  EXPECT_EQ(bed.pool.num_cached(), 4);
  const SequenceId b = bed.add({.prompt = iota(512), .max_total_tokens = 513});
  bed.step();  // the known last block is the one to be copied and the only one left to copy into
  EXPECT_EQ(bed.at(b).num_computed, 512);
  EXPECT_EQ(bed.pool.num_in_use(), 4);
}

TEST(SchedulerPrefix, ManyWithTheSamePrefixWaitForTheFirstToComputeIt) {
  SchedulerBed bed(600);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 64; ++i) ids.push_back(bed.add({.prompt = iota(8192 + 10, 100 + i)}));
  bed.step();
  EXPECT_EQ(bed.scheduler.stats().running, 1);
  EXPECT_EQ(bed.why_waits(ids[5]), WaitReason::kSharedPrefix);
  const SequenceId other = bed.add(50);
  EXPECT_EQ(bed.steps_to_first_token(other), 1);  // which nobody else has to wait for
  bed.scheduler.finish(other);
  for (const SequenceId id : ids)
    while (bed.at(id).num_tokens() == bed.at(id).num_prompt_tokens) bed.step();
  int64_t cached = 0;
  for (const SequenceId id : ids) cached += bed.at(id).num_cached_tokens;
  EXPECT_EQ(cached, 63 * 8192);
}

TEST(SchedulerPrefix, NobodyWaitsForMoreThanIsCommon) {
  SchedulerBed bed(1000);
  const SequenceId leader = bed.add({.prompt = iota(50'000)});
  std::vector<int32_t> prompt = bed.prompt(10'000);
  std::iota(prompt.begin(), prompt.begin() + 1024, 0);
  const SequenceId follower = bed.add({.prompt = prompt});
  EXPECT_THAT(bed.step(), ElementsAre(Pair(leader, 512)));
  EXPECT_THAT(bed.step(), ElementsAre(Pair(leader, 512)));
  EXPECT_THAT(bed.step(), UnorderedElementsAre(Pair(leader, 256), Pair(follower, 256)));
  EXPECT_EQ(bed.at(follower).num_cached_tokens, 1024);
}

TEST(SchedulerPrefix, FollowersGoOnWhenTheirLeaderLeavesOrStops) {
  for (const bool pause : {false, true}) {
    SchedulerBed bed(100);
    const SequenceId leader = bed.add({.prompt = iota(3000)}), follower = bed.add({.prompt = iota(3000, 7)});
    bed.step();
    bed.step();
    EXPECT_THAT(bed.tokens, ElementsAre(Pair(leader, 512)));
    if (pause)
      bed.scheduler.set_paused(leader, true);
    else
      bed.scheduler.finish(leader);
    EXPECT_THAT(bed.step(), ElementsAre(Pair(follower, 512)));
    EXPECT_EQ(bed.at(follower).num_cached_tokens, 1024);
  }
}

TEST(SchedulerPrefix, EqualBlocksComputedTwiceBecomeOne) {
  SchedulerBed bed(20);
  const SequenceId a = bed.add({.prompt = iota(300)});
  const SequenceId b = bed.add({.prompt = iota(300), .score_prompt = true});
  bed.step();
  EXPECT_EQ(bed.at(b).num_cached_tokens, 0);
  EXPECT_EQ(bed.at(b).num_computed, 256);  // beside a, which it does not wait for
  EXPECT_EQ(bed.at(a).blocks.blocks()[0], bed.at(b).blocks.blocks()[0]);
  EXPECT_EQ(bed.at(a).blocks.blocks()[1], bed.at(b).blocks.blocks()[1]);
  EXPECT_EQ(bed.pool.num_in_use(), 4);
}

TEST(SchedulerPrefix, SaltsAndTheSwitchKeepSequencesApart) {
  SchedulerBed bed(20);
  bed.add({.prompt = iota(300)});
  bed.step();
  const SequenceId b = bed.add({.prompt = iota(300), .salt = "other"});
  bed.step();
  EXPECT_EQ(bed.at(b).num_cached_tokens, 0);
  SchedulerBed off(20, {.max_model_tokens = 4096, .prefix_caching = false});
  off.scheduler.finish(off.add({.prompt = iota(300)}));
  const SequenceId c = off.add({.prompt = iota(300)});
  off.step();
  const SequenceId d = off.add({.prompt = iota(300)});
  off.step();
  EXPECT_EQ(off.at(d).num_cached_tokens, 0);
  off.scheduler.finish(c);
  off.scheduler.finish(d);
  EXPECT_EQ(off.pool.num_free(), 20);
}

TEST(SchedulerChoices, APromptIsComputedOnceAndForkedAtItsFirstToken) {
  SchedulerBed bed(20);
  const SequenceId id = bed.add({.prompt = iota(200), .num_choices = 4, .owner = 77});
  const SequenceId next = bed.add(10);
  EXPECT_EQ(next, id + 4);
  const StepPlan& plan = bed.plan();
  ASSERT_EQ(plan.slices.size(), 2u);
  EXPECT_EQ(plan.slices[0].num_draws() + plan.slices[1].num_draws(), 5);
  EXPECT_EQ(bed.scheduler.find(id + 1), nullptr);
  bed.scheduler.commit(std::vector<int32_t>{5, 20, 21, 22, 23});  // the short prompt comes first
  for (int choice = 0; choice < 4; ++choice) {
    const Sequence& sequence = bed.at(id + choice);
    EXPECT_EQ(sequence.choice, choice);
    EXPECT_EQ(sequence.owner, 77u);
    EXPECT_EQ(sequence.num_prompt_tokens, 200);
    EXPECT_EQ(sequence.num_tokens(), 201);
    EXPECT_EQ(sequence.ids.back(), 20 + choice);
    EXPECT_EQ(sequence.num_choices, 1);
    EXPECT_EQ(sequence.blocks.blocks()[1], bed.at(id).blocks.blocks()[1]);
  }
  EXPECT_EQ(bed.pool.num_in_use(), 3);
  bed.step();
  EXPECT_EQ(bed.num_samples, 5);
  ASSERT_EQ(bed.copies.size(), 3u);  // the last one writes in place
  for (int choice = 0; choice < 3; ++choice)
    EXPECT_EQ(bed.copies[choice],
              (BlockCopy{bed.at(id + 3).blocks.blocks()[1], bed.at(id + choice).blocks.blocks()[1]}));
  EXPECT_EQ(bed.pool.num_owners(bed.at(id).blocks.blocks()[0]), 4);
  bed.step();
  EXPECT_THAT(bed.copies, IsEmpty());
}

TEST(SchedulerChoices, APromptOfFullBlocksNeedsNoCopies) {
  SchedulerBed bed(20);
  const SequenceId id = bed.add({.prompt = iota(256), .num_choices = 3});
  bed.step();
  bed.step();
  EXPECT_THAT(bed.copies, IsEmpty());
  EXPECT_EQ(bed.tokens.size(), 3u);
  EXPECT_EQ(bed.at(id).blocks.blocks().size(), 3u);
}

TEST(SchedulerChoices, PlacesAreKeptForAllOfThem) {
  SchedulerBed bed(20, {.max_step_tokens = 64, .max_step_sequences = 4, .max_model_tokens = 4096});
  bed.add({.prompt = iota(100), .num_choices = 3});
  const SequenceId two = bed.add({.prompt = iota(10, 5), .num_choices = 2});
  bed.step();
  EXPECT_EQ(bed.why_waits(two), WaitReason::kSequences);
  bed.step();
  bed.step();
  EXPECT_EQ(bed.scheduler.stats().running, 3);
  EXPECT_FALSE(bed.running(two));
}

TEST(SchedulerChoices, APreemptedChoiceGoesOnFromItsOwnTokens) {
  SchedulerBed bed(3);
  const SequenceId id = bed.add({.prompt = iota(200), .max_total_tokens = 300, .num_choices = 3});
  bed.step();
  bed.step();  // one copy fits, a second does not
  EXPECT_THAT(bed.tokens, ElementsAre(Pair(id, 1), Pair(id + 1, 1)));
  EXPECT_FALSE(bed.running(id + 2));
  EXPECT_EQ(bed.at(id + 2).num_tokens(), 201);
  bed.scheduler.finish(id);
  bed.step();
  EXPECT_TRUE(bed.running(id + 2));
  EXPECT_EQ(bed.tokens_of(id + 2), 201 - 128);
  EXPECT_EQ(bed.at(id + 2).num_cached_tokens, 0);  // of the prompt, when it first started
}

TEST(SchedulerPause, APausedSequenceKeepsItsBlocksAndGetsNoStep) {
  SchedulerBed bed(10);
  const SequenceId a = bed.add(100), b = bed.add(100);
  bed.step();
  bed.scheduler.set_paused(a, true);
  const SchedulerStats stats = bed.scheduler.stats();
  EXPECT_EQ(stats.running, 1);
  EXPECT_EQ(stats.waiting, 1);
  EXPECT_EQ(stats.waiting_by_reason[static_cast<size_t>(WaitReason::kPaused)], 1);
  for (int i = 0; i < 3; ++i) EXPECT_THAT(bed.step(), ElementsAre(Pair(b, 1)));
  EXPECT_EQ(bed.at(a).blocks.blocks().size(), 1u);
  bed.scheduler.set_paused(a, false);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(a, 1), Pair(b, 1)));
}

TEST(SchedulerPause, ThePausedLoseTheirBlocksBeforeAnybodyElse) {
  SchedulerBed bed(3);
  const SequenceId a = bed.add(128, 200), b = bed.add(127, 200);
  bed.step();
  EXPECT_EQ(bed.pool.num_available(), 0);
  bed.scheduler.set_paused(a, true);
  bed.step();
  EXPECT_TRUE(bed.running(a));
  bed.step();  // b needs a second block, and a is older
  EXPECT_TRUE(bed.running(b));
  EXPECT_FALSE(bed.running(a));
  EXPECT_EQ(bed.why_waits(a), WaitReason::kPaused);
  bed.scheduler.finish(b);
  EXPECT_THAT(bed.step(), IsEmpty());
  bed.scheduler.set_paused(a, false);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(a, 1)));  // its first block was still known
}

TEST(SchedulerPause, ANewcomerTakesTheBlocksOfThePaused) {
  SchedulerBed bed(4);
  const SequenceId slow = bed.add(400, 100);
  bed.step();
  bed.scheduler.set_paused(slow, true);
  const SequenceId newcomer = bed.add(300, 100);
  bed.step();
  EXPECT_TRUE(bed.running(newcomer));
  EXPECT_FALSE(bed.running(slow));
}

}  // namespace
}  // namespace sparrow
