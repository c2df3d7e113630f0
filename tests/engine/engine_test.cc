// SPDX-License-Identifier: Apache-2.0
// What requests get back.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/cpu/cpu_runner.h"
#include "engine/cpu/sampler.h"
#include "support/engine/engine_client.h"

namespace sparrow {
namespace {

using namespace test;

TEST(Engine, GeneratesWhatTheModelGeneratesAlone) {
  const auto engine = start_engine();
  const auto prompt = yarn_model().text(0, 300);
  const Output output = run_one(*engine, greedy(prompt, 8));
  EXPECT_EQ(output.ids, yarn_model().greedy_alone(prompt, 8));
  EXPECT_EQ(output.finish, FinishReason::kLength);
}

TEST(Engine, PromptsAndChoicesOfARequestAreOutputsOfTheirOwn) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 130), 6);
  request.prompts.push_back(yarn_model().text(1, 40));
  request.prompts.push_back(yarn_model().text(2, 260));
  request.n = 3;
  const std::vector<std::vector<int32_t>> prompts = request.prompts;
  const auto stream = engine->submit(std::move(request)).value();
  const std::vector<Output> outputs = read_all(*stream, 9);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(outputs[i].ids, yarn_model().greedy_alone(prompts[i / 3], 6)) << i;
}

TEST(Engine, ThePromptOfSeveralChoicesIsComputedOnce) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 300), 4);
  request.n = 8;
  const auto stream = engine->submit(std::move(request)).value();
  read_all(*stream, 8);
  engine->drain();
  EXPECT_EQ(engine->stats().computed_tokens, 300 + 8 * 3) << "the last token of an output is not run";
}

TEST(Engine, ASharedPrefixIsComputedOnceThoughAllComeAtOnce) {
  EngineOptions options = small_options();
  options.cache_tokens = 200 * kBlockTokens;
  const auto engine = start_engine(options);
  constexpr int kRequests = 16, kPrefix = 4 * kBlockTokens, kOwn = 20;
  std::vector<std::unique_ptr<TokenStream>> streams;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < kRequests; ++i) {
    std::vector<int32_t> prompt = yarn_model().text(0, kPrefix);
    for (const int32_t id : yarn_model().text(10 + i, kOwn)) prompt.push_back(id);
    prompts.push_back(prompt);
    streams.push_back(engine->submit(greedy(prompt, 4)).value());
  }
  int cold = 0;
  for (int i = 0; i < kRequests; ++i) {
    const Output output = read_all(*streams[i]).front();
    EXPECT_EQ(output.ids, yarn_model().greedy_alone(prompts[i], 4));
    cold += output.cached_tokens == 0;
    EXPECT_EQ(output.cached_tokens % kPrefix, 0);
  }
  EXPECT_EQ(cold, 1);
  EXPECT_EQ(engine->stats().computed_tokens, kPrefix + kRequests * (kOwn + 3));
}

TEST(Engine, AFullyCachedPromptRunsItsLastTokenOnly) {
  for (const int length : {256, 257, 300}) {
    const auto engine = start_engine();
    const auto prompt = yarn_model().text(0, length);
    // Long enough that the block with the prompt's end is filled, and so known.
    run_one(*engine, greedy(prompt, 100));
    const int64_t before = engine->stats().computed_tokens;
    const Output output = run_one(*engine, greedy(prompt, 1));
    EXPECT_EQ(output.cached_tokens, length - 1) << length;
    EXPECT_EQ(output.ids, yarn_model().greedy_alone(prompt, 1));
    EXPECT_EQ(engine->stats().computed_tokens - before, 1) << length;
  }
}

TEST(Engine, RequestsOfDifferentSaltShareNothing) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 300), 2);
  run_one(*engine, request);
  request.salt = "another tenant";
  EXPECT_EQ(run_one(*engine, request).cached_tokens, 0);
  EXPECT_EQ(run_one(*engine, request).cached_tokens, 256);
}

TEST(Engine, EndAndStopIdsEndAnOutputUnlessItIsTooShortOrTheyAreIgnored) {
  const auto prompt = yarn_model().text(3, 50);
  const auto ids = yarn_model().greedy_alone(prompt, 10);
  ModelConfig config = yarn_model().config();
  config.eos_token_ids = {ids[4]};
  const auto engine = Engine::create(config, yarn_model().weights(), small_options()).value();
  const auto first = [&](int32_t id) { return std::find(ids.begin(), ids.end(), id) - ids.begin() + 1; };

  Request request = greedy(prompt, 10);
  request.ignore_eos = false;
  Output output = run_one(*engine, request);
  EXPECT_EQ(output.finish, FinishReason::kStop);
  EXPECT_EQ(output.ids, std::vector<int32_t>(ids.begin(), ids.begin() + first(ids[4])));

  request.min_tokens = 8;  // the end id is not drawn before the ninth token
  output = run_one(*engine, request);
  EXPECT_GE(output.ids.size(), 8u);
  EXPECT_EQ(std::count(output.ids.begin(), output.ids.begin() + 8, ids[4]), 0);

  request = greedy(prompt, 10);
  EXPECT_EQ(run_one(*engine, request).ids, ids) << "ignore_eos";
  request.stop_ids = {ids[2]};
  output = run_one(*engine, request);
  EXPECT_EQ(output.finish, FinishReason::kStop);
  EXPECT_EQ(output.ids, std::vector<int32_t>(ids.begin(), ids.begin() + first(ids[2])));
}

TEST(Engine, LogprobsAreThoseOfTheRowsOfTheModel) {
  const auto prompt = yarn_model().text(0, 200);
  SequenceRunner runner(CpuRunner::create(yarn_model().config(), yarn_model().weights(), /*cache_tokens=*/300,
                                          {.threads = test_threads(), .isa = test_isa()})
                            .value());
  Sequence sequence = runner.new_sequence();
  sequence.ids = prompt;
  std::vector<int32_t> rows(200);
  std::iota(rows.begin(), rows.end(), 0);
  runner.run(sequence, 200, rows).value();
  const Tensor logits = runner.logits();

  const auto engine = start_engine();
  Request request = greedy(prompt, 2);
  request.logprobs = 3;
  request.prompt_logprobs = 2;
  for (const bool cached : {false, true}) {
    const Output output = run_one(*engine, request);
    ASSERT_EQ(output.prompt_logprobs.size(), 199u) << cached;
    ASSERT_EQ(output.logprobs.size(), 2u);
    for (int i = 0; i < 200; ++i) {
      const std::span<const float> row(logits.row<float>(i), static_cast<size_t>(logits.cols()));
      const TokenLogprobs& got = i < 199 ? output.prompt_logprobs[i] : output.logprobs[0];
      const int32_t id = i < 199 ? prompt[i + 1] : output.ids[0];
      const TokenLogprobs want = logprobs_of(row, id, i < 199 ? 2 : 3);
      ASSERT_EQ(got.token.id, id);
      ASSERT_EQ(got.token.logprob, want.token.logprob) << "the same bits, row " << i;
      ASSERT_EQ(got.top.size(), want.top.size());
      for (size_t t = 0; t < want.top.size(); ++t) ASSERT_EQ(got.top[t].id, want.top[t].id);
    }
  }
}

TEST(Engine, MaxTokensZeroRunsThePromptOnly) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 200), 0);
  request.prompt_logprobs = 0;
  const Output output = run_one(*engine, request);
  EXPECT_TRUE(output.ids.empty());
  EXPECT_EQ(output.finish, FinishReason::kLength);
  EXPECT_EQ(output.prompt_logprobs.size(), 199u);
}

TEST(Engine, SampledIdsDoNotDependOnTheNeighbours) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 60), 12);
  request.sampling = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.1, .seed = 42};
  request.n = 4;
  const auto run = [&] {
    const auto stream = engine->submit(request).value();
    std::vector<std::vector<int32_t>> ids;
    for (const Output& output : read_all(*stream, 4)) ids.push_back(output.ids);
    return ids;
  };
  const auto alone = run();
  EXPECT_EQ(std::set(alone.begin(), alone.end()).size(), 4u) << "every choice draws for itself";
  std::vector<std::unique_ptr<TokenStream>> neighbours;
  for (int i = 0; i < 6; ++i)
    neighbours.push_back(engine->submit(greedy(yarn_model().text(20 + i, 150), 50)).value());
  EXPECT_EQ(run(), alone);
  request.sampling.seed = 43;
  EXPECT_NE(run(), alone);
}

TEST(Engine, PenaltiesFollowTheOutput) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 30), 40);
  request.sampling.frequency_penalty = 1000;
  const Output output = run_one(*engine, request);
  EXPECT_EQ(std::set(output.ids.begin(), output.ids.end()).size(), 40u) << "no id comes twice";
}

}  // namespace
}  // namespace sparrow
