// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

namespace sparrow {
namespace {

using testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kVocab = 100;

Result<int32_t> draw(const std::vector<float>& logits, const SamplingParams& params, uint64_t position = 0,
                     uint64_t choice = 0, const TokenCounts* counts = nullptr) {
  return Sampler().sample(
      {.logits = logits, .params = params, .counts = counts, .choice = choice, .position = position});
}

std::vector<int> histogram(const std::vector<float>& logits, const SamplingParams& params, int draws) {
  Sampler sampler;
  std::vector<int> counts(logits.size(), 0);
  for (int step = 0; step < draws; ++step)
    ++counts[sampler.sample({.logits = logits, .params = params, .position = static_cast<uint64_t>(step)})
                 .value()];
  return counts;
}

std::set<int> drawn(const std::vector<float>& logits, const SamplingParams& params, int draws = 5000) {
  const std::vector<int> counts = histogram(logits, params, draws);
  std::set<int> ids;
  for (size_t id = 0; id < counts.size(); ++id)
    if (counts[id] > 0) ids.insert(static_cast<int>(id));
  return ids;
}

TEST(Sampler, GreedyTakesTheLowerIdOnATie) {
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(draw({1, 3, 3, 2}, {.temperature = 0}, 5).value(), 1);
}

TEST(Sampler, LogitsThatAreNoNumbersAreAnError) {
  for (const float bad : {std::nanf(""), kInf})
    for (const double temperature : {0.0, 1.0}) {
      const SamplingParams params{.temperature = temperature};
      EXPECT_THAT(draw({1, bad, 2}, params, 7).error().message,
                  HasSubstr("output token 7 are not finite numbers"));
      EXPECT_FALSE(draw({bad, 1, 2}, params).ok());
      // Even where the bad one could not be drawn: the row cannot be trusted.
      EXPECT_FALSE(draw({bad, 1, 2}, {.temperature = temperature, .banned_ids = {0}}).ok());
    }
  EXPECT_FALSE(draw({-kInf, -kInf}, {.temperature = 1}).ok());
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

TEST(Sampler, ATinyTemperatureIsGreedyAndNotAnOverflow) {
  EXPECT_EQ(drawn({1, 3, 2.9f}, {.temperature = 1e-30}, 200), (std::set<int>{1}));
  EXPECT_EQ(drawn({-1e30f, 1e30f}, {.temperature = 1e-5}, 200), (std::set<int>{1}));
}

TEST(Sampler, TopKKeepsTheKMostProbableAndTheLowerIdOnATie) {
  EXPECT_EQ(drawn({1, 2, 1, 3}, {.temperature = 3, .top_k = 3, .seed = 1}), (std::set<int>{0, 1, 3}));
  EXPECT_EQ(drawn({1, 2, 1, 3}, {.temperature = 3, .top_k = 1, .seed = 1}), (std::set<int>{3}));
  EXPECT_EQ(drawn({1, 2, 1, 3}, {.temperature = 3, .top_k = 400, .seed = 1}), (std::set<int>{0, 1, 2, 3}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  const std::vector<float> logits = {std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  EXPECT_EQ(histogram(logits, {.top_p = 0.4}, 2000), (std::vector<int>{0, 2000, 0}));
  const std::vector<int> two = histogram(logits, {.top_p = 0.75}, 5000);
  EXPECT_EQ(two[2], 0);
  EXPECT_NEAR(two[1] / 5000.0, 0.625, 0.04);
}

// The nucleus is found without sorting everything: it must be the one that sorting finds, however large.
TEST(Sampler, TopPOfManyEqualIdsTakesTheLowerOnes) {
  const std::vector<float> logits(1000, 0.25f);
  for (const auto& [top_p, size] :
       {std::pair(0.0005, 1), {0.0635, 64}, {0.0645, 65}, {0.5, 500}, {1.0, 1000}}) {
    const std::set<int> ids = drawn(logits, {.top_p = top_p}, 20 * size);
    EXPECT_LT(*ids.rbegin(), size) << top_p;
    EXPECT_GT(static_cast<int>(ids.size()), size * 9 / 10) << top_p;
  }
}

TEST(Sampler, TopPCountsTheProbabilityThatTopKLeft) {
  // Of 0.4, 0.3, 0.2, 0.1 top-k leaves 0.57 and 0.43: the first alone reaches 0.5, but not 0.6.
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f), std::log(0.1f)};
  EXPECT_EQ(drawn(logits, {.top_p = 0.5, .top_k = 2}), (std::set<int>{0}));
  EXPECT_EQ(drawn(logits, {.top_p = 0.6, .top_k = 2}), (std::set<int>{0, 1}));
}

TEST(Sampler, MinPKeepsIdsNearTheBestOne) {
  const std::vector<float> logits = {std::log(0.3f), std::log(0.5f), std::log(0.2f)};
  EXPECT_EQ(drawn(logits, {.min_p = 0.5}), (std::set<int>{0, 1}));
  EXPECT_EQ(drawn(logits, {.min_p = 1.0}), (std::set<int>{1}));
  EXPECT_EQ(drawn(logits, {.min_p = 0.3}), (std::set<int>{0, 1, 2}));
  // After the temperature: at 0.5 the shares are 0.24, 0.66, 0.11.
  EXPECT_EQ(drawn(logits, {.temperature = 0.5, .min_p = 0.3}), (std::set<int>{0, 1}));
}

TEST(Sampler, PenaltiesCountPromptAndOutputAsTheApiSays) {
  TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{0, 0});
  counts.add_output(1);
  counts.add_output(1);
  const auto greedy = [&](SamplingParams params, const std::vector<float>& logits) {
    params.temperature = 0;
    return draw(logits, params, 0, 0, &counts).value();
  };
  // Repetition: prompt and output, once however often; a negative logit gets more negative.
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {4, 4, 1.9f}), 0);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {4, 4, 2.1f}), 2);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {-1, -1, -1.9f}), 2);
  EXPECT_EQ(greedy({.repetition_penalty = 2}, {-1, -1, -2.1f}), 0);
  // Presence: output only, once.
  EXPECT_EQ(greedy({.presence_penalty = 1}, {0, 3, 2.1f}), 2);
  EXPECT_EQ(greedy({.presence_penalty = 1}, {0, 3, 1.9f}), 1);
  EXPECT_EQ(greedy({.presence_penalty = 1}, {2.5f, 3, 2.1f}), 0);
  // Frequency: output only, for each time.
  EXPECT_EQ(greedy({.frequency_penalty = 1}, {0, 3, 1.1f}), 2);
  EXPECT_EQ(greedy({.frequency_penalty = 1}, {0, 3, 0.9f}), 1);
  EXPECT_EQ(greedy({.frequency_penalty = -1}, {0, 3, 4.9f}), 1);
}

TEST(Sampler, APenaltyThatOverflowsKeepsTheOrder) {
  TokenCounts counts;
  counts.add_prompt(std::vector<int32_t>{0, 1});
  const SamplingParams params{.temperature = 0, .repetition_penalty = 1e-300};
  EXPECT_EQ(draw({1, 2, 3}, params, 0, 0, &counts).value(), 0);
}

TEST(Sampler, BiasIsAddedAfterThePenalties) {
  TokenCounts counts;
  counts.add_output(0);
  const SamplingParams params{.temperature = 0, .repetition_penalty = 2, .logit_bias = {{0, 3.0f}}};
  EXPECT_EQ(draw({2, 3.9f}, params, 0, 0, &counts).value(), 0) << "2 / 2 + 3";
  EXPECT_EQ(draw({2, 4.1f}, params, 0, 0, &counts).value(), 1);
}

TEST(Sampler, OnlyAllowedIdsAreDrawnAndNeverBannedOnes) {
  const std::vector<float> logits = {5, 4, 3, 2, 1};
  EXPECT_EQ(draw(logits, {.temperature = 0, .allowed_ids = {3, 2}}).value(), 2);
  EXPECT_EQ(draw(logits, {.temperature = 0, .banned_ids = {0, 2}}).value(), 1);
  EXPECT_EQ(drawn(logits, {.temperature = 9, .allowed_ids = {0, 3, 4}, .banned_ids = {3}}),
            (std::set<int>{0, 4}));
  EXPECT_THAT(draw(logits, {.allowed_ids = {1}, .banned_ids = {1}}, 2).error().message,
              HasSubstr("no id is left for output token 2"));
  const std::vector<int32_t> more = {0};
  const SamplingParams greedy{.temperature = 0};
  EXPECT_EQ(Sampler().sample({.logits = logits, .params = greedy, .more_banned = more}).value(), 1);
  const std::vector<uint32_t> mask = {0b11000}, none = {0};
  EXPECT_EQ(Sampler().sample({.logits = logits, .params = greedy, .mask = mask}).value(), 3);
  EXPECT_FALSE(Sampler().sample({.logits = logits, .params = greedy, .mask = none}).ok());
}

TEST(Sampler, ADrawDependsOnSeedChoiceAndPositionAlone) {
  std::vector<float> logits(kVocab);
  for (int i = 0; i < kVocab; ++i) logits[i] = std::sin(static_cast<float>(i));
  Sampler used;
  const SamplingParams other{.top_p = 0.5, .banned_ids = {3}, .seed = 1}, params{.seed = 9};
  for (uint64_t i = 0; i < 50; ++i) (void)used.sample({.logits = logits, .params = other, .position = i});
  std::set<std::vector<int32_t>> outputs;
  for (uint64_t choice = 0; choice < 8; ++choice) {
    std::vector<int32_t> ids;
    for (uint64_t step = 0; step < 20; ++step) {
      ids.push_back(
          used.sample({.logits = logits, .params = params, .choice = choice, .position = step}).value());
      EXPECT_EQ(ids.back(), draw(logits, params, step, choice).value());
    }
    EXPECT_GT(std::set(ids.begin(), ids.end()).size(), 5u);
    outputs.insert(ids);
  }
  EXPECT_EQ(outputs.size(), 8u) << "every choice draws for itself";
}

TEST(Sampler, LogprobsAreOfTheModelsOwnDistribution) {
  const std::vector<float> logits = {1, 3, 3, -kInf, 2};
  const double log_total = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  const TokenLogprobs result = logprobs_of(logits, 4, 3);
  EXPECT_EQ(result.token.id, 4);
  EXPECT_NEAR(result.token.logprob, 2 - log_total, 1e-6);
  ASSERT_EQ(result.top.size(), 3u);
  EXPECT_EQ(result.top[0].id, 1) << "the lower id on ties";
  EXPECT_EQ(result.top[1].id, 2);
  EXPECT_EQ(result.top[2].id, 4);
  EXPECT_NEAR(result.top[0].logprob, 3 - log_total, 1e-6);
  EXPECT_TRUE(logprobs_of(logits, 0, 0).top.empty());
  EXPECT_EQ(logprobs_of(logits, 0, 128).top.size(), 5u);
  // Large logits do not overflow.
  EXPECT_NEAR(logprobs_of(std::vector<float>{10000, 10000}, 0, 0).token.logprob, std::log(0.5), 1e-3);
}

TEST(Sampler, ParametersThatMakeNoSenseAreNamed) {
  const auto says = [](const SamplingParams& params) { return validate(params, kVocab).error().message; };
  EXPECT_EQ(says({.temperature = -1}), "temperature must be a number >= 0, got -1");
  EXPECT_EQ(says({.temperature = std::nan("")}), "temperature must be a number >= 0, got nan");
  EXPECT_EQ(says({.top_p = 0}), "top_p must be in (0, 1], got 0");
  EXPECT_EQ(says({.top_p = 1.5}), "top_p must be in (0, 1], got 1.5");
  EXPECT_EQ(says({.top_k = -3}), "top_k must be >= 0, got -3");
  EXPECT_EQ(says({.min_p = -0.1}), "min_p must be in [0, 1], got -0.1");
  EXPECT_EQ(says({.repetition_penalty = 0}), "repetition_penalty must be a number > 0, got 0");
  EXPECT_EQ(says({.presence_penalty = kInf}), "presence_penalty must be a finite number, got inf");
  EXPECT_EQ(says({.frequency_penalty = -kInf}), "frequency_penalty must be a finite number, got -inf");
  EXPECT_EQ(says({.logit_bias = {{100, 1.0f}}}),
            "logit_bias holds 100, which is not in the vocabulary [0, 100)");
  EXPECT_EQ(says({.logit_bias = {{5, kInf}}}), "logit_bias of id 5 must be a finite number, got inf");
  EXPECT_EQ(says({.allowed_ids = {-1}}),
            "allowed_token_ids holds -1, which is not in the vocabulary [0, 100)");
  EXPECT_EQ(says({.banned_ids = {7, 100}}),
            "banned_token_ids holds 100, which is not in the vocabulary [0, 100)");
  EXPECT_TRUE(validate(SamplingParams{}, kVocab).ok());
}

}  // namespace
}  // namespace sparrow
