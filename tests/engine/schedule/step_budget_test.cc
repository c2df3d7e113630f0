// SPDX-License-Identifier: Apache-2.0
// Machines are made of what a step costs on them; no clock runs here.
#include "engine/schedule/step_budget.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sparrow {
namespace {

// A step of n tokens takes fixed + n * per_token seconds.
struct FakeMachine {
  double fixed = 0, per_token = 0;
  double seconds(int tokens) const { return fixed + tokens * per_token; }
};

// Seconds of the last of so many steps that use all they may.
double run(StepBudget& budget, const FakeMachine& machine, bool shared, int steps) {
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    const int tokens = budget.tokens(shared);
    seconds = machine.seconds(tokens);
    budget.took(seconds, tokens, tokens, /*prompts=*/true);
  }
  return seconds;
}

TEST(StepBudget, StepsTakeAsLongAsTheyMayOnSlowAndFastMachines) {
  for (const double rate : {70.0, 300.0, 1500.0}) {
    const FakeMachine machine{.per_token = 1 / rate};
    StepBudget budget(512);
    // However slow it is, a step has the least tokens.
    const double least = StepBudget::kLeastTokens / rate, most = 512 / rate;
    EXPECT_NEAR(run(budget, machine, /*shared=*/true, 20),
                std::clamp(StepBudget::kSharedSeconds, least, most), 0.02)
        << rate;
    EXPECT_NEAR(run(budget, machine, /*shared=*/false, 20),
                std::clamp(StepBudget::kAloneSeconds, least, most), 0.02)
        << rate;
  }
}

TEST(StepBudget, TheFirstStepIsModest) {
  EXPECT_LE(StepBudget(512).tokens(false), 128);
  EXPECT_LE(StepBudget(512).tokens(true), 128);
}

// A long context makes each token dearer: 512 tokens took 14 s.
TEST(StepBudget, FollowsAMachineThatGetsSlower) {
  StepBudget budget(512);
  run(budget, {.per_token = 0.001}, true, 10);
  EXPECT_LT(run(budget, {.per_token = 14.0 / 512}, true, 4), 0.5);
}

TEST(StepBudget, IsAtLeastAGroupOfRowsAndAtMostTheLimit) {
  StepBudget budget(512);
  run(budget, {.per_token = 10}, true, 50);
  EXPECT_EQ(budget.tokens(true), StepBudget::kLeastTokens);
  run(budget, {.per_token = 1e-6}, true, 50);
  EXPECT_EQ(budget.tokens(true), 512);
  EXPECT_EQ(StepBudget(4).tokens(true), 4);
}

// Where a single token takes two seconds, steps of 16 tokens would do little but read weights.
TEST(StepBudget, MayTakeTwiceAsLongAsADecode) {
  const FakeMachine machine{.fixed = 2, .per_token = 0.02};
  StepBudget budget(512);
  for (int i = 0; i < 40; ++i) budget.took(machine.seconds(1), 1, 512, /*prompts=*/false);
  EXPECT_NEAR(run(budget, machine, true, 40), 2 * machine.seconds(1), 0.2);
}

TEST(StepBudget, AStepWithLittleToDoDoesNotRaiseIt) {
  StepBudget budget(512);
  run(budget, {.per_token = 0.01}, true, 10);
  const int before = budget.tokens(true);
  for (int i = 0; i < 20; ++i) budget.took(0.0001, 3, before, /*prompts=*/true);
  EXPECT_EQ(budget.tokens(true), before);
  budget.took(0, 0, 0, true);
  EXPECT_EQ(budget.tokens(true), before);
}

}  // namespace
}  // namespace sparrow
