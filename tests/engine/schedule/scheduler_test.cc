// SPDX-License-Identifier: Apache-2.0
// What runs, who has to give way, and what is refused.
#include "engine/schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SchedulerBed;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

constexpr SchedulerLimits kSmallSteps{
    .max_step_tokens = 16, .max_step_sequences = 16, .max_model_tokens = 1 << 20, .min_chunk = 2};

TEST(SchedulerTest, RunsAPromptInChunksAndThenOneTokenAtATime) {
  SchedulerBed bed(4, kSmallSteps);
  const SequenceId id = bed.add(40);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(id, 16)));
  EXPECT_EQ(bed.num_samples, 0);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(id, 16)));
  EXPECT_THAT(bed.step(), ElementsAre(Pair(id, 8)));
  EXPECT_EQ(bed.num_samples, 1);
  EXPECT_EQ(bed.at(id).ids.back(), 9);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(id, 1)));
  EXPECT_EQ(bed.num_samples, 1);
  EXPECT_EQ(bed.at(id).num_computed, 41);
  EXPECT_EQ(bed.at(id).num_tokens(), 42);
}

TEST(SchedulerTest, DecodesComeFirstAndAllOfThemRunInEveryStep) {
  SchedulerBed bed(40, kSmallSteps);
  std::vector<SequenceId> decoding;
  for (int i = 0; i < 10; ++i) decoding.push_back(bed.add(1));
  bed.step();
  const SequenceId prompt = bed.add(1000);
  for (int i = 0; i < 5; ++i) {
    const auto tokens = bed.step();
    ASSERT_EQ(tokens.size(), 11u);
    for (int j = 0; j < 10; ++j) EXPECT_EQ(tokens[j], (std::pair{decoding[j], 1}));
    EXPECT_EQ(tokens[10], (std::pair{prompt, 6}));
  }
}

TEST(SchedulerTest, PromptsShareAStepEquallyAndLeaveWhatTheyDoNotNeed) {
  SchedulerBed bed(40, kSmallSteps);
  const SequenceId a = bed.add(100), b = bed.add(3), c = bed.add(100), d = bed.add(100);
  EXPECT_THAT(bed.step(), UnorderedElementsAre(Pair(a, 4), Pair(b, 3), Pair(c, 4), Pair(d, 5)));
  EXPECT_THAT(bed.step(), UnorderedElementsAre(Pair(a, 5), Pair(b, 1), Pair(c, 5), Pair(d, 5)));
}

TEST(SchedulerTest, PromptsTakeTurnsWhenTheyAreTooManyForOneStep) {
  SchedulerBed bed(
      100, {.max_step_tokens = 16, .max_step_sequences = 16, .max_model_tokens = 4096, .min_chunk = 8});
  std::vector<SequenceId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(bed.add(1000));
  for (int i = 0; i < 12; ++i) {
    bed.step();
    ASSERT_EQ(bed.tokens.size(), 2u);
    EXPECT_EQ(bed.tokens[0].second + bed.tokens[1].second, 16);
  }
  for (const SequenceId id : ids) EXPECT_GE(bed.at(id).num_computed, 2 * 8) << id;
}

TEST(SchedulerTest, AShortPromptIsNotStuckBehindOneOf500KTokens) {
  SchedulerBed bed(5000);
  const SequenceId long_one = bed.add(500'000);
  bed.step();
  const SequenceId short_one = bed.add(200);
  EXPECT_EQ(bed.steps_to_first_token(short_one), 1);
  EXPECT_EQ(bed.tokens_of(long_one), 512 - 200);
}

TEST(SchedulerTest, AShortPromptIsNotStuckBehindManyLongOnes) {
  SchedulerBed bed(5000);
  for (int i = 0; i < 30; ++i) bed.add(20'000);
  for (int i = 0; i < 3; ++i) bed.step();
  EXPECT_EQ(bed.steps_to_first_token(bed.add(100)), 1);
}

TEST(SchedulerTest, AShortPromptIsNotStuckBehindALongOneThatWaitsForBlocks) {
  SchedulerBed bed(100);
  const SequenceId running = bed.add(50 * 128, 128);
  bed.step();
  const SequenceId long_one = bed.add(90 * 128, 128), short_one = bed.add(100);
  bed.step();
  EXPECT_TRUE(bed.running(running));
  EXPECT_FALSE(bed.running(long_one));
  EXPECT_TRUE(bed.running(short_one));
}

TEST(SchedulerTest, ALongPromptIsNotOvertakenForEver) {
  SchedulerBed bed(100);
  const SequenceId running = bed.add(50 * 128, 128);
  bed.step();
  const SequenceId long_one = bed.add(90 * 128, 128);
  int overtaken = 0;
  for (int i = 0; i < 100; ++i) {
    const SequenceId short_one = bed.add(1);
    bed.step();
    if (bed.running(short_one)) ++overtaken;
    bed.scheduler.finish(short_one);
  }
  EXPECT_EQ(overtaken, 64);
  bed.scheduler.finish(running);
  bed.step();
  EXPECT_TRUE(bed.running(long_one));
}

TEST(SchedulerTest, AdmissionCountsTheBlocksOfTheWholePromptAndOfTheFirstToken) {
  SchedulerBed bed(4, kSmallSteps);
  const SequenceId a = bed.add(200, 50), b = bed.add(200, 50), c = bed.add(256, 50);
  bed.step();  // c needs three: its first token does not fit into its prompt's blocks
  EXPECT_EQ(bed.at(a).blocks.blocks().size(), 2u);
  EXPECT_EQ(bed.at(b).blocks.blocks().size(), 2u);
  EXPECT_FALSE(bed.running(c));
  EXPECT_EQ(bed.why_waits(c), WaitReason::kBlocks);
  EXPECT_EQ(bed.scheduler.waiting_info(c)->blocks_missing, 3);
  bed.scheduler.finish(a);
  bed.step();
  EXPECT_EQ(bed.scheduler.waiting_info(c)->blocks_missing, 1);
  bed.scheduler.finish(b);
  bed.step();
  EXPECT_TRUE(bed.running(c));
  EXPECT_EQ(bed.at(c).blocks.blocks().size(), 3u);
}

TEST(SchedulerTest, NewcomersLeaveRoomForThoseThatGrow) {
  SchedulerBed bed(12, kSmallSteps);
  for (int i = 0; i < 8; ++i) bed.add(10);
  bed.step();  // eight may grow: four blocks stay free for them
  const SequenceId newcomer = bed.add(10);
  bed.step();
  EXPECT_EQ(bed.scheduler.waiting_info(newcomer)->blocks_missing, 1);
}

TEST(SchedulerTest, NoMoreSequencesRunThanTheLimit) {
  SchedulerBed bed(100, kSmallSteps);
  std::vector<SequenceId> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(bed.add(1));
  bed.step();
  EXPECT_EQ(bed.scheduler.stats().running, 16);
  EXPECT_EQ(bed.why_waits(ids[16]), WaitReason::kSequences);
  EXPECT_EQ(bed.scheduler.waiting_info(ids[18])->queue_position, 2);
  EXPECT_FALSE(bed.scheduler.waiting_info(ids[0]));
  bed.scheduler.finish(ids[3]);
  bed.step();
  EXPECT_TRUE(bed.running(ids[16]));
  EXPECT_EQ(bed.scheduler.waiting_info(ids[18])->queue_position, 1);
}

TEST(SchedulerTest, WhenThePoolIsFullTheYoungestGivesWayAndComputesItsTokensAgain) {
  SchedulerBed bed(
      4,
      {.max_step_tokens = 512, .max_step_sequences = 8, .max_model_tokens = 4096, .prefix_caching = false});
  const SequenceId a = bed.add(120), b = bed.add(120);
  for (int i = 0; i < 4; ++i) bed.step();
  const SequenceId c = bed.add(110, 17);
  for (int i = 0; i < 5; ++i) bed.step();
  EXPECT_EQ(bed.tokens_of(c), 1);
  bed.step();  // a takes the last block, and b that of c
  EXPECT_THAT(bed.tokens, ElementsAre(Pair(a, 1), Pair(b, 1)));
  EXPECT_FALSE(bed.running(c));
  EXPECT_EQ(bed.at(c).num_computed, 0);
  EXPECT_TRUE(bed.at(c).blocks.blocks().empty());
  EXPECT_EQ(bed.scheduler.stats().preemptions, 1);
  bed.scheduler.finish(a);
  EXPECT_EQ(bed.at(c).num_tokens(), 115);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(b, 1), Pair(c, 115)));
}

TEST(SchedulerTest, ThePreemptedFindTheirBlocksInTheCache) {
  SchedulerBed bed(4);
  const SequenceId a = bed.add(255), b = bed.add(200);
  for (int i = 0; i < 3; ++i) bed.step();  // a's third block is b's second
  EXPECT_FALSE(bed.running(b));
  bed.scheduler.finish(a);
  EXPECT_EQ(bed.at(b).num_tokens(), 202);
  EXPECT_THAT(bed.step(), ElementsAre(Pair(b, 202 - 128)));
}

TEST(SchedulerTest, TheLowestPriorityGivesWayFirst) {
  SchedulerBed bed(2, {.max_step_tokens = 512, .max_step_sequences = 8, .max_model_tokens = 4096});
  const SequenceId unimportant = bed.add({.prompt = bed.prompt(128), .max_total_tokens = 200, .priority = 5});
  bed.step();
  bed.scheduler.finish(unimportant);
  const SequenceId old = bed.add({.prompt = bed.prompt(127), .max_total_tokens = 200, .priority = 5});
  const SequenceId young = bed.add({.prompt = bed.prompt(127), .max_total_tokens = 200, .priority = -1});
  for (int i = 0; i < 3; ++i) bed.step();
  EXPECT_TRUE(bed.running(young));
  EXPECT_FALSE(bed.running(old));
}

TEST(SchedulerTest, TwoSequencesThatEachNeedTheWholePoolBothEnd) {
  SchedulerBed bed(8);
  const SequenceId a = bed.add(10, 8 * 128 - 9), b = bed.add(10, 8 * 128 - 9);
  int steps = 0;
  for (const SequenceId id : {a, b}) {
    while (bed.at(id).num_tokens() < bed.at(id).max_total_tokens) {
      bed.step();
      ASSERT_LT(++steps, 3000);
    }
    bed.scheduler.finish(id);
  }
  EXPECT_TRUE(bed.scheduler.idle());
  EXPECT_GE(bed.scheduler.stats().preemptions, 1);
}

TEST(SchedulerTest, AShortStepServesDecodesFirstAndLetsPromptsGetOn) {
  SchedulerBed bed(200, {.max_step_tokens = 512, .max_step_sequences = 64, .max_model_tokens = 16384});
  std::vector<SequenceId> decodes;
  for (int i = 0; i < 40; ++i) decodes.push_back(bed.add(1));
  bed.step();
  const SequenceId lengthy = bed.add(5000, 10);
  bed.scheduler.set_step_tokens(100);
  bed.step();
  for (const SequenceId id : decodes) EXPECT_EQ(bed.tokens_of(id), 1);
  EXPECT_EQ(bed.tokens_of(lengthy), 60);
  bed.scheduler.set_step_tokens(1);
  bed.step();
  for (const SequenceId id : decodes) EXPECT_EQ(bed.tokens_of(id), 1);
  EXPECT_EQ(bed.tokens_of(lengthy), 16) << "however little time there is";
  // A question that comes beside it has a part of the next step.
  bed.scheduler.set_step_tokens(140);
  const SequenceId brief = bed.add(30, 4);
  bed.step();
  EXPECT_EQ(bed.tokens_of(brief), 30);
  EXPECT_EQ(bed.tokens_of(lengthy), 70);
  bed.scheduler.set_step_tokens(1'000'000);
  bed.step();
  EXPECT_EQ(bed.tokens_of(lengthy), 512 - 41) << "never beyond the limits";
}

TEST(SchedulerTest, WhatCanNeverFitIsRefusedWithTheNumbers) {
  SchedulerBed bed(4, {.max_step_tokens = 16, .max_step_sequences = 4, .max_model_tokens = 2000});
  const auto refusal = [&](SequenceSpec spec) {
    const auto id = bed.scheduler.add(std::move(spec), bed.now);
    EXPECT_FALSE(id.ok());
    return id.ok() ? "" : id.error().message;
  };
  EXPECT_EQ(refusal({.prompt = bed.prompt(1900), .max_total_tokens = 2001}),
            "prompt of 1900 tokens and output of up to 101 are 2001 tokens, and the limit is 2000");
  EXPECT_EQ(refusal({.prompt = bed.prompt(500), .max_total_tokens = 514}),
            "prompt of 500 tokens and output of up to 14 need 5 blocks of the cache, which has 4");
  EXPECT_EQ(refusal({.prompt = bed.prompt(513)}),
            "prompt of 513 tokens and output of up to 0 need 5 blocks of the cache, which has 4");
  EXPECT_THAT(refusal({.prompt = bed.prompt(5), .max_total_tokens = 9, .num_choices = 5}),
              HasSubstr("got 5"));
  EXPECT_THAT(refusal({.prompt = bed.prompt(5), .max_total_tokens = 9, .num_choices = 0}),
              HasSubstr("got 0"));
  EXPECT_THAT(refusal({.max_total_tokens = 9}), HasSubstr("at least one token"));
  EXPECT_TRUE(bed.scheduler.idle());
  // The last token is drawn and not run: 513 tokens fit into four blocks.
  const SequenceId fits = bed.add({.prompt = bed.prompt(500), .max_total_tokens = 513});
  while (bed.at(fits).num_tokens() < 513) bed.step();
  EXPECT_EQ(bed.pool.num_in_use(), 4);
}

TEST(SchedulerTest, LimitsThatMakeNoSenseAreNamed) {
  const auto message = [](SchedulerLimits limits) {
    const Status status = validate(limits);
    return status.ok() ? "" : status.error().message;
  };
  EXPECT_EQ(message(kSmallSteps), "");
  EXPECT_THAT(message({.max_step_tokens = 5, .max_step_sequences = 6, .max_model_tokens = 1}),
              HasSubstr("got 5"));
  EXPECT_THAT(message({.max_step_sequences = 0, .max_model_tokens = 1}), HasSubstr("max_step_sequences"));
  EXPECT_THAT(message({.max_model_tokens = 0}), HasSubstr("max_model_tokens"));
  EXPECT_THAT(message({.max_model_tokens = 1, .min_chunk = 0}), HasSubstr("min_chunk"));
  EXPECT_THAT(message({.max_model_tokens = 1, .priority_step = milliseconds(-1)}),
              HasSubstr("priority_step"));
}

}  // namespace
}  // namespace sparrow
