// SPDX-License-Identifier: Apache-2.0
#include "engine/sim/sim_runner.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/engine.h"

namespace sparrow {
namespace {

struct Simulated : testing::Test {
  ModelConfig config = [] {
    ModelConfig config;
    config.vocab_size = 1000;
    config.max_positions = 4096;
    config.eos_token_ids = {2};
    return config;
  }();
  SimOptions options{.cost = {.cache_tokens = 64 * kBlockTokens, .rows = {.at = {1}, .us = {0}}}};

  std::unique_ptr<Engine> engine(EngineOptions engine_options = {}) {
    auto runner = SimRunner::create(config, options, 0);
    EXPECT_TRUE(runner.ok()) << runner.error().message;
    auto engine = Engine::create(config, std::move(runner).value(), engine_options);
    EXPECT_TRUE(engine.ok()) << engine.error().message;
    return std::move(engine).value();
  }
  static std::vector<TokenEvent> answer(Engine& engine, Request request) {
    auto stream = engine.submit(std::move(request)).value();
    std::vector<TokenEvent> events;
    while (auto event = stream->next()) events.push_back(std::move(*event));
    return events;
  }
  static std::vector<int32_t> ids_of(const std::vector<TokenEvent>& events) {
    std::vector<int32_t> ids;
    for (const TokenEvent& event : events)
      if (event.id) ids.push_back(*event.id);
    return ids;
  }
  Request request(int max_tokens, uint64_t seed = 1) const {
    Request request{.prompts = {std::vector<int32_t>(300, 5)}, .max_tokens = max_tokens};
    request.sampling.seed = seed;
    return request;
  }
};

TEST_F(Simulated, AnswersDependOnTheSeedAlone) {
  const auto first = engine(), second = engine();
  EXPECT_EQ(ids_of(answer(*first, request(50))), ids_of(answer(*second, request(50))));
  EXPECT_NE(ids_of(answer(*first, request(50))), ids_of(answer(*second, request(50, 2))));
}

TEST_F(Simulated, StepsTakeTheirTime) {
  options.cost.rows = {.at = {1}, .us = {5000}};
  const auto simulated = engine();
  Request asked = request(20);
  asked.ignore_eos = true;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ids_of(answer(*simulated, asked)).size(), 20u);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(100));
}

TEST_F(Simulated, AnswersAreAsLongAsAsked) {
  options.output_tokens = 20;
  const auto simulated = engine();
  size_t total = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) total += ids_of(answer(*simulated, request(2000, seed))).size();
  EXPECT_NEAR(static_cast<double>(total) / 200, 20, 6);
  Request at_least = request(200);
  at_least.min_tokens = 100;
  EXPECT_GE(ids_of(answer(*simulated, at_least)).size(), 100u);
}

TEST_F(Simulated, OnlyWhatIsAllowedIsDrawn) {
  const auto simulated = engine();
  Request asked = request(50);
  asked.ignore_eos = true;
  asked.sampling.allowed_ids = {7, 9, 11};
  asked.sampling.banned_ids = {9};
  const std::vector<int32_t> ids = ids_of(answer(*simulated, asked));
  EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [](int32_t id) { return id == 7 || id == 11; }));
  EXPECT_NE(std::count(ids.begin(), ids.end(), 7), 0);
  EXPECT_NE(std::count(ids.begin(), ids.end(), 11), 0);
}

TEST_F(Simulated, ThePrefixCacheIsTheRealOne) {
  const auto simulated = engine();
  answer(*simulated, request(4));
  const std::vector<TokenEvent> events = answer(*simulated, request(4));
  EXPECT_EQ(events.back().cached_tokens, 2 * kBlockTokens);  // of 300
  EXPECT_EQ(simulated->stats().prefix_tokens_hit, 2 * kBlockTokens);
}

TEST_F(Simulated, ACacheOfNoSizeIsAnError) {
  options.cost.cache_tokens = 0;
  EXPECT_FALSE(SimRunner::create(config, options, 0).ok());
  EXPECT_EQ(SimRunner::create(config, options, 1000).value()->info().num_blocks, 8);
}

}  // namespace
}  // namespace sparrow
