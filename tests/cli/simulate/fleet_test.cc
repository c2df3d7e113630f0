// SPDX-License-Identifier: Apache-2.0
#include "cli/simulate/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/simulate/report.h"
#include "cli/simulate/slo.h"
#include "support/temp_dir.h"

namespace sparrow::cli {
namespace {

// 10 ms a step and a millisecond for each 100 tokens of it.
FleetOptions options(int instances = 1, Routing routing = Routing::kRoundRobin) {
  return {.cost = {.name = "test",
                   .gpus = 8,
                   .cache_tokens = 200'000,
                   .rows = {.at = {0, 1'000'000}, .us = {10'000, 10'010'000}}},
          .instances = instances,
          .routing = routing};
}

FleetResult simulate(const FleetWorkload& workload, const FleetOptions& options) {
  auto result = simulate_fleet(workload, options);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return std::move(result).value();
}

TEST(Fleet, TimesAreTheCostModels) {
  FleetWorkload workload;
  workload.add({.seconds = 5, .output_tokens = 3}, {{1, 1000}});
  const FleetResult result = simulate(workload, options());
  EXPECT_EQ(result.requests, 1);
  EXPECT_EQ(result.output_tokens, 3);
  EXPECT_NEAR(result.first_token.mean(), 0.020, 1e-9);  // 1000 tokens
  EXPECT_NEAR(result.token_gap.mean(), 0.01001, 1e-9);  // one
  EXPECT_NEAR(result.seconds, 5 + 0.020 + 2 * 0.01001, 1e-9);
  EXPECT_EQ(result.gpus, 8);
}

TEST(Fleet, EveryRequestIsAnsweredOnceWhateverTheRouter) {
  const FleetWorkload workload =
      make_workload({.kind = "chat", .requests = 500, .rate = 20, .seed = 3}).value();
  int64_t wanted = 0, prompts = 0;
  for (const SimRequest& request : workload.requests) {
    wanted += request.output_tokens;
    prompts += request.prompt_tokens;
  }
  for (const char* name : {"round-robin", "least-loaded", "prefix-hash", "prefix"}) {
    const FleetResult result = simulate(workload, options(4, routing_named(name).value()));
    EXPECT_EQ(result.requests, 500) << name;
    EXPECT_EQ(result.refused, 0) << name;
    EXPECT_EQ(result.output_tokens, wanted) << name;
    EXPECT_EQ(result.prompt_tokens, prompts) << name;
    EXPECT_EQ(result.whole.count(), 500) << name;
    EXPECT_EQ(result.token_gap.count(), wanted - 500) << name;
    EXPECT_GT(result.busy, 0);
    EXPECT_LE(result.busy, 1);
    // The same again.
    const FleetResult again = simulate(workload, options(4, routing_named(name).value()));
    EXPECT_EQ(fleet_json({&again, 1}), fleet_json({&result, 1})) << name;
  }
}

TEST(Fleet, AConversationGoesOnAfterItsAnswerAndFindsItInTheCache) {
  FleetWorkload workload;
  workload.add({.output_tokens = 300}, {{1, 1000}});
  workload.add({.seconds = 2, .after = 0, .output_tokens = 10}, {{1, 1400}});
  const FleetResult result = simulate(workload, options());
  // 1000 + 300 tokens, but for the last one drawn, in full blocks.
  EXPECT_GE(result.prefix_tokens_hit, 1280);
  EXPECT_NEAR(result.seconds, 0.020 + 299 * 0.01001 + 2 + 0.011 + 9 * 0.01001, 0.01);
}

TEST(Fleet, ARouterThatKnowsPrefixesFindsMoreOfThem) {
  const FleetWorkload workload =
      make_workload({.kind = "agents", .requests = 400, .users = 20, .seed = 1}).value();
  const FleetResult blind = simulate(workload, options(4));
  const FleetResult knowing = simulate(workload, options(4, Routing::kPrefix));
  EXPECT_GT(knowing.hit_share(), blind.hit_share() + 0.1);
}

TEST(Fleet, WhatCannotFitIsRefused) {
  FleetWorkload workload;
  workload.add({.output_tokens = 1}, {{1, 300'000}});
  workload.add({.after = 0, .output_tokens = 1}, {{2, 100}});
  const FleetResult result = simulate(workload, options());
  EXPECT_EQ(result.refused, 1);
  EXPECT_THAT(result.refusal, testing::HasSubstr("prompt of 300000 tokens"));
  EXPECT_EQ(result.output_tokens, 1);
}

TEST(Fleet, WhatTakesMoreMemoryThanThereIsIsRefused) {
  FleetWorkload workload;
  workload.add({}, {{1, 10}});
  FleetOptions many = options(4096);
  many.cache_tokens = int64_t{1} << 36;
  EXPECT_THAT(simulate_fleet(workload, many).error().message, testing::HasSubstr("--instances 4096"));
}

// Steps of eleven days, many of them: the clock stops, and the simulation does not.
TEST(Fleet, StepsMayTakeForEver) {
  FleetOptions slow = options();
  slow.cost.rows = {.at = {1}, .us = {1e300}};
  FleetWorkload workload;
  workload.add({.output_tokens = 20'000}, {{1, 10}});
  EXPECT_EQ(simulate(workload, slow).output_tokens, 20'000);
}

TEST(ServiceGoals, AreReadAndRefused) {
  const ServiceGoal goal = parse_goal("ttft=2s,itl=50ms,percentile=99").value();
  EXPECT_EQ(goal.first_token, 2);
  EXPECT_EQ(goal.token_gap, 0.05);
  EXPECT_EQ(goal.share, 0.99);
  EXPECT_DOUBLE_EQ(parse_goal("itl=0.5,percentile=99.9").value().share, 0.999);
  for (const char* bad : {"",
                          "percentile=99",
                          "ttft",
                          "ttft=",
                          "ttft=-1s",
                          "ttft=2m",
                          "tpot=1s",
                          "ttft=1s,,",
                          "ttft=1s,",
                          "ttft=0s",
                          "ttft=inf",
                          "ttft=nan",
                          "ttft=1e999",
                          "ttft=s",
                          "ttft=2 s",
                          "ttft=1s,ttft=2s",
                          "ttft=1s,percentile=99ms",
                          "ttft=1s,percentile=99s",
                          "ttft=1s,percentile=100",
                          "ttft=1s,percentile=0"}) {
    const auto goal = parse_goal(bad);
    ASSERT_FALSE(goal.ok()) << bad;
    EXPECT_THAT(goal.error().message, testing::HasSubstr("--slo")) << bad;
  }
}

TEST(ServiceGoals, TheSmallestFleetIsFound) {
  const FleetWorkload workload = make_workload({.kind = "batch", .requests = 300, .seed = 5}).value();
  const ServiceGoal goal{.first_token = 2};
  const FleetSearch search = smallest_fleet(workload, options(), goal, 1024).value();
  ASSERT_TRUE(search.found);
  const FleetResult& found = search.fleet;
  EXPECT_TRUE(goal.met_by(found));
  EXPECT_EQ(found.gpus, 8 * found.instances);
  ASSERT_NE(found.instances & (found.instances - 1), 0) << "doubling alone finds " << found.instances;
  EXPECT_FALSE(goal.met_by(simulate(workload, options(found.instances - 1))));
  // One instance less is not enough, and is shown to its end.
  const FleetSearch less = smallest_fleet(workload, options(), goal, 8 * found.instances - 1).value();
  EXPECT_FALSE(less.found);
  EXPECT_EQ(less.fleet.instances, found.instances - 1);
  EXPECT_TRUE(less.fleet.complete);
  EXPECT_EQ(less.fleet.requests, 300);
  EXPECT_FALSE(smallest_fleet(workload, options(), goal, 7).ok()) << "an instance has 8";
}

// No number of instances makes a step shorter, or a cache larger: that is seen early.
TEST(ServiceGoals, WhatCannotBeMetIsGivenUp) {
  const FleetWorkload workload = make_workload({.kind = "batch", .requests = 300, .seed = 5}).value();
  const FleetSearch search = smallest_fleet(workload, options(), {.token_gap = 0.005}, 64).value();
  EXPECT_FALSE(search.found);
  EXPECT_EQ(search.fleet.gpus, 64);
  EXPECT_GT(search.fleet.token_gap.quantile(0.95), 0.005);
  FleetOptions small = options();
  small.cache_tokens = 1000;
  const FleetSearch refused = smallest_fleet(workload, small, {.first_token = 1e6}, 64).value();
  EXPECT_FALSE(refused.found);
  EXPECT_GT(refused.fleet.refused, 0);
}

TEST(LatencyHistogram, KnowsPercentilesToOneAndAHalfPerCent) {
  LatencyHistogram times;
  for (int i = 1; i <= 1000; ++i) times.add(i * 1e-3);
  EXPECT_NEAR(times.quantile(0.5), 0.5, 0.5 * 0.016);
  EXPECT_NEAR(times.quantile(0.99), 0.99, 0.99 * 0.016);
  EXPECT_NEAR(times.share_within(0.25), 0.25, 0.01);
  EXPECT_NEAR(times.mean(), 0.5005, 1e-9);
  EXPECT_EQ(LatencyHistogram().quantile(0.5), 0);
  EXPECT_EQ(LatencyHistogram().share_within(1), 1);
}

}  // namespace
}  // namespace sparrow::cli
