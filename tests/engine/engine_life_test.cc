// SPDX-License-Identifier: Apache-2.0
// What is refused, cancelled, slow or sick, and how an engine ends.
#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "support/engine/engine_client.h"

namespace sparrow {
namespace {

using namespace test;

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(EngineLife, WhatIsWrongWithARequestIsSaidAtOnceAndByName) {
  const auto engine = start_engine();
  const auto says = [&](const std::function<void(Request&)>& change) {
    Request request = greedy(yarn_model().text(0, 20), 5);
    change(request);
    const auto result = engine->submit(std::move(request));
    EXPECT_FALSE(result.ok());
    return result.ok() ? Error{} : result.error();
  };
  EXPECT_THAT(says([](Request& r) { r.prompts.clear(); }).message, HasSubstr("prompts is empty"));
  EXPECT_THAT(says([](Request& r) { r.prompts[0].clear(); }).message, HasSubstr("prompt 0 is empty"));
  EXPECT_THAT(says([](Request& r) { r.prompts[0][3] = 320; }).message, HasSubstr("prompt id 320 at index 3"));
  EXPECT_THAT(says([](Request& r) { r.n = 17; }).message, HasSubstr("n must be in [1, 16], got 17"));
  EXPECT_EQ(says([](Request& r) { r.n = 0; }).field, "n");
  EXPECT_THAT(says([](Request& r) { r.max_tokens = -1; }).message,
              HasSubstr("max_tokens must be >= 0, got -1"));
  EXPECT_THAT(says([](Request& r) { r.max_tokens = 9000; }).message, HasSubstr("8192 positions"));
  EXPECT_THAT(says([](Request& r) { r.max_tokens = std::numeric_limits<int64_t>::max(); }).message,
              HasSubstr("8192 positions"));
  EXPECT_THAT(says([](Request& r) { r.max_tokens = 8000; }).message,
              HasSubstr("20 prompt tokens and 8000 new ones need 63 blocks of 128 tokens, the cache has 40"));
  EXPECT_THAT(says([](Request& r) { r.min_tokens = 6; }).message, HasSubstr("min_tokens"));
  EXPECT_THAT(says([](Request& r) { r.stop_ids = {-1}; }).message, HasSubstr("stop_token_ids holds -1"));
  EXPECT_THAT(says([](Request& r) { r.logprobs = 1000; }).message, HasSubstr("logprobs must be in"));
  EXPECT_THAT(says([](Request& r) { r.prompt_logprobs = -1; }).field, "prompt_logprobs");
  EXPECT_THAT(says([](Request& r) { r.queue_timeout = milliseconds(-5); }).message,
              HasSubstr("queue_timeout"));
  const Error error = says([](Request& r) { r.sampling.top_p = 2; });
  EXPECT_EQ(error.code, Errc::kInvalidArgument);
  EXPECT_EQ(error.field, "top_p");
  EXPECT_THAT(error.message, HasSubstr("got 2"));
}

TEST(EngineLife, OptionsThatMakeNoSenseAreNamed) {
  const auto says = [](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = small_options();
    change(options);
    return Engine::create(yarn_model().config(), yarn_model().weights(), options).error().message;
  };
  EXPECT_THAT(says([](EngineOptions& o) { o.cache_tokens = 0; }),
              HasSubstr("cache_tokens must be >= 1, got 0"));
  EXPECT_THAT(says([](EngineOptions& o) { o.cpu.threads = -1; }), HasSubstr("threads"));
  EXPECT_THAT(says([](EngineOptions& o) { o.max_model_tokens = 8193; }), HasSubstr("8192 positions"));
  EXPECT_THAT(says([](EngineOptions& o) { o.max_step_sequences = 0; }), HasSubstr("max_step_sequences"));
  EXPECT_THAT(says([](EngineOptions& o) { o.max_queued_requests = 0; }), HasSubstr("max_queued_requests"));
  EXPECT_THAT(says([](EngineOptions& o) { o.events_per_output = 0; }), HasSubstr("events_per_output"));
}

TEST(EngineLife, AFullQueueIsAnErrorOfItsOwnKind) {
  EngineOptions options = small_options();
  options.max_step_sequences = 1;
  options.max_queued_requests = 3;
  const auto engine = start_engine(options);
  std::vector<std::unique_ptr<TokenStream>> streams;
  Errc refused = Errc::kIo;
  for (int i = 0; i < 20 && refused == Errc::kIo; ++i) {
    auto stream = engine->submit(greedy(yarn_model().text(i, 200), 200));
    if (stream.ok())
      streams.push_back(std::move(stream).value());
    else
      refused = stream.error().code;
  }
  EXPECT_EQ(refused, Errc::kBusy);
  EXPECT_GE(streams.size(), 3u);
  EXPECT_LE(streams.size(), 5u);
  streams.clear();  // cancels them
  engine->drain();
  EXPECT_EQ(engine->stats().live_requests, 0);
}

TEST(EngineLife, WhoWaitsAndForWhatIsVisible) {
  EngineOptions options = small_options();
  options.cache_tokens = 40 * kBlockTokens;
  options.events_per_output = 1 << 20;
  const auto engine = start_engine(options);
  const auto running = engine->submit(greedy(yarn_model().text(0, 300), 4800)).value();
  ASSERT_TRUE(running->next());
  const auto second = engine->submit(greedy(yarn_model().text(1, 5000), 2)).value();
  const auto third = engine->submit(greedy(yarn_model().text(2, 5000), 2)).value();
  const std::vector<WaitingSequence> waiting = engine->waiting();
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].request, second->request_id());
  EXPECT_EQ(waiting[0].queue_position, 0);
  EXPECT_EQ(waiting[1].request, third->request_id());
  EXPECT_EQ(waiting[1].queue_position, 1);
  std::vector<WaitingSequence> later = engine->waiting();  // a step on, somebody has asked for blocks
  ASSERT_EQ(later.size(), 2u);
  EXPECT_EQ(later[0].reason, "blocks of the cache");
  EXPECT_GT(later[0].blocks_missing, 0);
  second->cancel();
  third->cancel();
  EXPECT_TRUE(engine->waiting().empty());
  engine->stop();
  EXPECT_TRUE(engine->waiting().empty());
}

TEST(EngineLife, CancellingFreesTheBlocksAndLeavesTheOthersAlone) {
  const auto engine = start_engine();
  const auto prompt = yarn_model().text(0, 200);
  auto cancelled = engine->submit(greedy(yarn_model().text(1, 300), 2000)).value();
  const auto dropped = [&] { return engine->submit(greedy(yarn_model().text(2, 300), 2000)).value(); };
  { const auto gone = dropped(); }
  const auto stays = engine->submit(greedy(prompt, 30)).value();
  ASSERT_TRUE(cancelled->next());
  cancelled->cancel();
  EXPECT_EQ(read_all(*cancelled).front().finish, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*stays).front().ids, yarn_model().greedy_alone(prompt, 30));
  engine->drain();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.blocks_in_use, 0);
  EXPECT_EQ(stats.cancelled, 2);
  EXPECT_EQ(stats.reached_length, 1);
}

// The stream holds fewer events than the outputs have tokens: nobody can be done before the reader says so.
TEST(EngineLife, OneOutputCanBeCancelledAndTheOthersGoOn) {
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 100), 300);
  request.n = 3;
  const auto stream = engine->submit(request).value();
  std::vector<Output> outputs(3);
  bool told = false;
  while (auto event = stream->next()) {
    Output& output = outputs.at(event->output);
    if (event->id) output.ids.push_back(*event->id);
    if (event->finish) output.finish = event->finish;
    if (event->output == 1 && !std::exchange(told, true)) stream->cancel(1);
  }
  EXPECT_EQ(outputs[0].finish, FinishReason::kLength);
  EXPECT_EQ(outputs[1].finish, FinishReason::kCancelled);
  EXPECT_EQ(outputs[2].finish, FinishReason::kLength);
  EXPECT_LT(outputs[1].ids.size(), 300u);
  EXPECT_EQ(outputs[0].ids, outputs[2].ids);
  EXPECT_EQ(outputs[0].ids.size(), 300u);
  EXPECT_EQ(engine->stats().blocks_in_use, 0);
}

TEST(EngineLife, ASlowReaderPausesItsOwnRequestOnly) {
  EngineOptions options = small_options();
  options.events_per_output = 4;
  const auto engine = start_engine(options);
  const auto slow_prompt = yarn_model().text(1, 100), prompt = yarn_model().text(0, 100);
  const auto slow = engine->submit(greedy(slow_prompt, 40)).value();
  EXPECT_EQ(run_one(*engine, greedy(prompt, 40)).ids, yarn_model().greedy_alone(prompt, 40))
      << "nobody reads the other";
  const int64_t made = engine->stats().generated_tokens - 40;
  EXPECT_LE(made, 4) << "no more than fits into the stream";
  EXPECT_EQ(read_all(*slow).front().ids, yarn_model().greedy_alone(slow_prompt, 40))
      << "and goes on when it is read";
}

TEST(EngineLife, ARequestThatCannotStartInTimeEndsWithDeadline) {
  EngineOptions options = small_options();
  options.max_step_sequences = 2;
  const auto engine = start_engine(options);
  const auto first = engine->submit(greedy(yarn_model().text(0, 100), 1000)).value();
  const auto second = engine->submit(greedy(yarn_model().text(1, 100), 1000)).value();
  ASSERT_TRUE(first->next());
  ASSERT_TRUE(second->next());
  Request late = greedy(yarn_model().text(2, 100), 5);
  late.n = 2;
  late.queue_timeout = milliseconds(1);
  const auto stream = engine->submit(late).value();
  for (const Output& output : read_all(*stream, 2)) {
    EXPECT_EQ(output.finish, FinishReason::kDeadline);
    EXPECT_TRUE(output.ids.empty());
  }
  EXPECT_EQ(engine->stats().expired, 2);
}

// The weights with one token whose embedding is not a number.
struct PoisonedWeights {
  PoisonedWeights(const Weights& from, int32_t token) : weights(from) {
    table.resize(from.embed.numel() * size_of(from.embed.dtype));
    std::memcpy(table.data(), from.embed.data, table.size());
    weights.embed.data = table.data();
    for (int64_t i = 0; i < from.embed.cols(); ++i) {
      if (from.embed.dtype == DType::kF32)
        weights.embed.row<float>(token)[i] = std::nanf("");
      else
        weights.embed.row<BFloat16>(token)[i] = to_bf16(std::nanf(""));
    }
  }
  std::vector<std::byte> table;
  Weights weights;
};

std::set<int32_t> to_set(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

class PoisonTest : public testing::TestWithParam<std::string> {};

TEST_P(PoisonTest, LogitsThatAreNoNumbersEndTheirOwnRequestOnly) {
  EngineModel healthy_model(GetParam(), 2);
  // Prompts of the lower half of the ids; what follows them is another text on every instruction set.
  const int32_t half = healthy_model.config().vocab_size / 2;
  const auto text = [&](int number) {
    std::vector<int32_t> ids = healthy_model.text(number, 140);
    for (int32_t& id : ids) id %= half;
    return ids;
  };
  std::set<int32_t> drawn;
  for (const int number : {0, 2, 3}) drawn.merge(to_set(healthy_model.greedy_alone(text(number), 120)));
  int32_t poison = half;
  while (drawn.contains(poison)) ++poison;
  ASSERT_LT(poison, healthy_model.config().vocab_size) << "every id is part of a healthy text";
  const PoisonedWeights poisoned(healthy_model.weights(), poison);
  // A cache so small that its blocks change hands, and what was left in them must not matter.
  EngineOptions options = small_options();
  options.cache_tokens = 4 * kBlockTokens;
  const auto engine = Engine::create(healthy_model.config(), poisoned.weights, options).value();
  for (const size_t at : {size_t{0}, size_t{70}, size_t{139}}) {
    std::vector<int32_t> sick_prompt = text(1);
    sick_prompt[at] = poison;
    const auto healthy = engine->submit(greedy(text(0), 20)).value();
    const auto sick = engine->submit(greedy(sick_prompt, 20)).value();
    const Output output = read_all(*sick).front();
    EXPECT_EQ(output.finish, FinishReason::kError) << at;
    EXPECT_THAT(output.error, HasSubstr("output token 0 are not finite")) << at;
    EXPECT_EQ(read_all(*healthy).front().ids, healthy_model.greedy_alone(text(0), 20)) << at;
    for (const int number : {2, 3}) {  // together they use every block there is
      const Output next = run_one(*engine, greedy(text(number), 120));
      EXPECT_EQ(next.finish, FinishReason::kLength) << at << " " << next.error;
      EXPECT_EQ(next.ids, healthy_model.greedy_alone(text(number), 120)) << at << ": where the sick one was";
    }
  }
  std::vector<int32_t> sick_prompt = text(1);
  sick_prompt[70] = poison;
  Request scored = greedy(sick_prompt, 1);
  scored.prompt_logprobs = 1;
  EXPECT_THAT(run_one(*engine, scored).error, HasSubstr("prompt token 138 are not finite")) << "its last row";
  EXPECT_EQ(engine->stats().failed, 4);
}

INSTANTIATE_TEST_SUITE_P(Goldens, PoisonTest, testing::Values("yarn", "bf16"),
                         [](const auto& info) { return info.param; });

TEST(EngineLife, DrainFinishesWhatItHasAndTakesNoMore) {
  const auto engine = start_engine();
  const auto stream = engine->submit(greedy(yarn_model().text(0, 100), 20)).value();
  std::thread reader([&] { EXPECT_EQ(read_all(*stream).front().ids.size(), 20u); });
  engine->drain();
  reader.join();
  EXPECT_EQ(engine->submit(greedy({1}, 1)).error().code, Errc::kStopped);
}

TEST(EngineLife, StopEndsEverythingAndStreamsMayOutliveIt) {
  auto engine = start_engine();
  const auto running = engine->submit(greedy(yarn_model().text(0, 100), 1000)).value();
  ASSERT_TRUE(running->next());
  const auto waiting = engine->submit(greedy(yarn_model().text(1, 100), 1000)).value();
  engine->stop();
  EXPECT_EQ(engine->submit(greedy({1}, 1)).error().code, Errc::kStopped);
  engine.reset();
  EXPECT_EQ(read_all(*running).front().finish, FinishReason::kCancelled);
  EXPECT_EQ(read_all(*waiting).front().finish, FinishReason::kCancelled);
  running->cancel();
}

TEST(EngineLife, StatisticsAddUp) {
  const auto engine = start_engine();
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(engine->submit(greedy(yarn_model().text(i, 50), 6)).value());
  for (const auto& stream : streams) read_all(*stream);
  engine->drain();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests, 4);
  EXPECT_EQ(stats.prompt_tokens, 200);
  EXPECT_EQ(stats.generated_tokens, 24);
  EXPECT_EQ(stats.computed_tokens, 4 * (50 + 5));
  EXPECT_EQ(stats.reached_length, 4);
  EXPECT_GT(stats.largest_step_sequences, 1);
  EXPECT_GT(stats.step_seconds, 0);
  EXPECT_EQ(stats.blocks_total, 40);
  EXPECT_EQ(stats.running_sequences + stats.waiting_sequences + stats.live_requests + stats.queued_requests,
            0);
}

}  // namespace
}  // namespace sparrow
