// SPDX-License-Identifier: Apache-2.0
#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace sparrow {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int> histogram(const std::vector<float>& logits, const SamplingParams& params, int draws) {
  Sampler sampler;
  std::vector<int> counts(logits.size(), 0);
  for (int step = 0; step < draws; ++step) ++counts[sampler.sample(logits, params, step).value()];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowerIdOnATie) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(Sampler().sample(std::vector<float>{1, 3, 3, 2}, {.temperature = 0}, 5), 1);
}

TEST(Sampler, LogitsThatAreNoNumbersGiveNothing) {
  for (const float bad : {std::nanf(""), kInf})
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_FALSE(Sampler().sample(std::vector<float>{1, bad, 2}, {.temperature = temperature}, 0));
      EXPECT_FALSE(Sampler().sample(std::vector<float>{bad, 1, 2}, {.temperature = temperature}, 0));
    }
  EXPECT_FALSE(Sampler().sample(std::vector<float>{-kInf, -kInf}, {.temperature = 1}, 0));
}

TEST(Sampler, MinusInfinityIsNeverDrawn) {
  const std::vector<int> counts = histogram({0, -kInf, 0}, {.temperature = 5, .seed = 3}, 2000);
  EXPECT_EQ(counts[1], 0);
  EXPECT_GT(counts[0], 800);
  EXPECT_GT(counts[2], 800);
}

// 20,000 draws: the standard deviation of a share p is at most 0.0036, so 0.02 is over five of them.
TEST(Sampler, SharesFollowTheSoftmax) {
  const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 1.0f};
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const std::vector<int> counts = histogram(logits, {.temperature = temperature, .seed = 11}, 20000);
    double total = 0;
    for (const float logit : logits) total += std::exp(logit / temperature);
    for (size_t id = 0; id < logits.size(); ++id)
      EXPECT_NEAR(counts[id] / 20000.0, std::exp(logits[id] / temperature) / total, 0.02)
          << id << " at " << temperature;
  }
}

TEST(Sampler, TopKKeepsTheKMostProbableAndTheLowerIdOnATie) {
  const std::vector<int> counts = histogram({1, 2, 1, 3}, {.temperature = 3, .top_k = 3, .seed = 1}, 5000);
  EXPECT_GT(counts[0], 0);
  EXPECT_EQ(counts[2], 0);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Probabilities 0.5, 0.3, 0.2.
  const std::vector<float> logits = {std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  EXPECT_EQ(histogram(logits, {.top_p = 0.4}, 2000), (std::vector<int>{0, 2000, 0}));
  const std::vector<int> two = histogram(logits, {.top_p = 0.75}, 5000);
  EXPECT_EQ(two[2], 0);
  EXPECT_NEAR(two[1] / 5000.0, 0.625, 0.04);
}

TEST(Sampler, ADrawDependsOnSeedAndStepAlone) {
  std::vector<float> logits(100);
  for (int i = 0; i < 100; ++i) logits[i] = std::sin(static_cast<float>(i));
  Sampler used, fresh;
  for (int i = 0; i < 50; ++i) (void)used.sample(logits, {.seed = 1}, i);
  std::set<int32_t> ids;
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(used.sample(logits, {.seed = 9}, step), fresh.sample(logits, {.seed = 9}, step));
    ids.insert(*fresh.sample(logits, {.seed = 9}, step));
  }
  EXPECT_GT(ids.size(), 5u);
}

TEST(Sampler, ParametersThatMakeNoSenseAreNamed) {
  EXPECT_EQ(validate({.temperature = -1}).error().message, "temperature must be a number >= 0, got -1");
  EXPECT_EQ(validate({.temperature = std::nan("")}).error().message,
            "temperature must be a number >= 0, got nan");
  EXPECT_EQ(validate({.top_p = 0}).error().message, "top_p must be in (0, 1], got 0");
  EXPECT_EQ(validate({.top_p = 1.5}).error().message, "top_p must be in (0, 1], got 1.5");
  EXPECT_EQ(validate({.top_k = -3}).error().message, "top_k must be >= 0, got -3");
  EXPECT_TRUE(validate({}).ok());
}

}  // namespace
}  // namespace sparrow
