// SPDX-License-Identifier: Apache-2.0
// Who waits and for what, who goes first, and whose time in the queue is over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "engine/schedule/scheduler.h"
#include "support/engine/scheduler_bed.h"

namespace sparrow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::SchedulerBed;
using testing::ElementsAre;
using testing::Pair;

TEST(SchedulerQueue, SmallerPrioritiesStartFirstAndEqualOnesByArrival) {
  SchedulerBed bed(100, {.max_step_tokens = 16, .max_step_sequences = 1, .max_model_tokens = 4096});
  const auto add = [&](int32_t priority) {
    return bed.add({.prompt = bed.prompt(1), .max_total_tokens = 100, .priority = priority});
  };
  const std::vector<SequenceId> ids{add(1), add(0), add(-3), add(0), add(2)};
  for (const int next : {2, 1, 3, 0, 4}) {
    EXPECT_THAT(bed.step(), ElementsAre(Pair(ids[next], 1)));
    bed.scheduler.finish(ids[next]);
  }
}

TEST(SchedulerQueue, APriorityWeighsAsMuchAsSomeTimeOfWaiting) {
  SchedulerBed bed(100, {.max_step_tokens = 16,
                         .max_step_sequences = 1,
                         .max_model_tokens = 4096,
                         .priority_step = milliseconds(5000)});
  const SequenceId low = bed.add({.prompt = bed.prompt(1), .max_total_tokens = 100, .priority = 2});
  bed.now += seconds(9);
  const SequenceId earlier = bed.add(1);
  bed.now += seconds(2);
  const SequenceId later = bed.add(1);
  for (const SequenceId next : {earlier, low, later}) {
    EXPECT_THAT(bed.step(), ElementsAre(Pair(next, 1)));
    bed.scheduler.finish(next);
  }
}

// Two of the best priority come every second, and one can run: their queue only grows.
TEST(SchedulerQueue, NobodyIsOvertakenByThoseWhoComeLongAfterIt) {
  const SchedulerLimits limits{.max_step_tokens = 16, .max_step_sequences = 1, .max_model_tokens = 4096};
  const auto bound = limits.max_priority * limits.priority_step;
  SchedulerBed bed(100, limits);
  const auto add = [&](int32_t priority) {
    return bed.add({.prompt = bed.prompt(1), .max_total_tokens = 2, .priority = priority});
  };
  const SequenceId patient = add(0);
  const SchedulerTime arrived = bed.now;
  std::map<SequenceId, SchedulerTime> greedy;
  for (SequenceId started = 0; started != patient;) {
    for (int i = 0; i < 2; ++i) greedy.emplace(add(-1'000'000), bed.now);
    const auto ran = bed.step();
    ASSERT_EQ(ran.size(), 1u);
    started = ran[0].first;
    bed.scheduler.finish(started);
    if (started != patient) {
      ASSERT_LE(greedy.at(started) - arrived, bound) << "came too late to go first";
    }
    bed.now += seconds(1);
  }
}

TEST(SchedulerQueue, CountsWhoWaitsForWhat) {
  SchedulerBed bed(4, {.max_step_tokens = 512, .max_step_sequences = 2, .max_model_tokens = 4096});
  const auto waiting = [&](WaitReason reason) {
    return bed.scheduler.stats().waiting_by_reason[static_cast<size_t>(reason)];
  };
  const SequenceId first = bed.add(300, 10);
  bed.step();
  const SequenceId large = bed.add(300, 10);
  bed.step();
  EXPECT_EQ(waiting(WaitReason::kBlocks), 1);
  EXPECT_EQ(bed.at(large).wait_reason, WaitReason::kBlocks);
  const SequenceId small = bed.add(1, 10);
  bed.step();
  EXPECT_TRUE(bed.running(small));
  bed.add(1, 10);
  bed.step();
  EXPECT_EQ(waiting(WaitReason::kSequences), 2) << "two run, and no more may";
  EXPECT_EQ(waiting(WaitReason::kBlocks), 0);
  bed.scheduler.finish(first);
  bed.scheduler.finish(small);
  bed.step();
  EXPECT_EQ(waiting(WaitReason::kSequences), 0);
}

TEST(SchedulerQueue, AQueueDeadlineDropsWhatHasNotStarted) {
  SchedulerBed bed(100, {.max_step_tokens = 16, .max_step_sequences = 1, .max_model_tokens = 4096});
  const auto add = [&](seconds timeout, uint64_t owner) {
    return bed.add({.prompt = bed.prompt(1),
                    .max_total_tokens = 100,
                    .queue_deadline = bed.now + timeout,
                    .owner = owner});
  };
  const SequenceId runs = add(seconds(5), 1), early = add(seconds(10), 2), late = add(seconds(20), 3);
  bed.step();
  bed.now += milliseconds(9999);
  EXPECT_TRUE(bed.plan().expired.empty());
  bed.commit();
  bed.now += milliseconds(1);
  const StepPlan& plan = bed.plan();
  ASSERT_EQ(plan.expired.size(), 1u);
  EXPECT_EQ(plan.expired[0].id, early);
  EXPECT_EQ(plan.expired[0].owner, 2u);
  bed.commit();
  EXPECT_EQ(bed.scheduler.find(early), nullptr);
  EXPECT_TRUE(bed.running(runs));
  bed.now += seconds(10);
  EXPECT_EQ(bed.plan().expired[0].id, late);
  bed.commit();
}

TEST(SchedulerQueue, ADeadlineIsForTheQueueAloneNotForThePreempted) {
  SchedulerBed bed(3);
  const SequenceId a = bed.add(120);
  const SequenceId b = bed.add({.prompt = bed.prompt(250), .queue_deadline = bed.now + seconds(1)});
  bed.step();
  EXPECT_TRUE(bed.running(b));
  for (int i = 0; i < 9; ++i) bed.step();
  EXPECT_FALSE(bed.running(b));
  bed.now += seconds(100);
  EXPECT_TRUE(bed.plan().expired.empty());
  bed.commit();
  bed.scheduler.finish(a);
  bed.step();
  EXPECT_TRUE(bed.running(b));
}

}  // namespace
}  // namespace sparrow
