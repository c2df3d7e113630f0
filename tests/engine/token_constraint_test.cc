// SPDX-License-Identifier: Apache-2.0
// Outputs that are held to a constraint: each to its own, through preemption and among neighbours.
#include "engine/token_constraint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

#include "base/threads/thread_pool.h"
#include "support/engine/engine_client.h"
#include "support/engine/fake_runner.h"
#include "support/engine/runs_constraint.h"

namespace sparrow {
namespace {

using namespace test;

// Allows ids of a list in its order, `free` free ones before each, and then the end.
class ListConstraint final : public TokenConstraint {
 public:
  ListConstraint(std::vector<int32_t> ids, int free) : ids_(std::move(ids)), free_(free) {}

  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<ListConstraint>(*this); }
  NextIds next_ids() override {
    if (next_ == ids_.size()) return {.end = NextIds::End::kOnly};
    if (num_free_ < free_) return {.end = NextIds::End::kBanned};
    return {.allowed = {&ids_[next_], 1}, .end = NextIds::End::kBanned};
  }
  void advance(int32_t id) override {
    if (next_ == ids_.size()) return;
    if (num_free_++ < free_) return;
    EXPECT_EQ(id, ids_[next_]);
    ++next_;
    num_free_ = 0;
  }

 private:
  std::vector<int32_t> ids_;
  int free_;
  size_t next_ = 0;
  int num_free_ = 0;
};

// The same ids as bits.
class MaskConstraint final : public TokenConstraint {
 public:
  MaskConstraint(std::vector<int32_t> ids, bool may_end) : ids_(std::move(ids)), may_end_(may_end) {}

  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<MaskConstraint>(*this); }
  NextIds next_ids() override {
    if (next_ == ids_.size()) return {.end = NextIds::End::kOnly};
    mask_.assign(10, 0);
    for (const int32_t id : {ids_[next_], ids_[next_] + 1}) mask_[id / 32] |= uint32_t{1} << (id % 32);
    return {.mask = mask_, .end = may_end_ ? NextIds::End::kFree : NextIds::End::kBanned};
  }
  void advance(int32_t id) override {
    if (next_ == ids_.size() || may_end_) return;
    EXPECT_TRUE(id == ids_[next_] || id == ids_[next_] + 1) << id;
    ++next_;
  }

 private:
  std::vector<int32_t> ids_;
  bool may_end_;
  size_t next_ = 0;
  std::vector<uint32_t> mask_;
};

constexpr int32_t kEnd = 2, kStop = 319;  // the model's, and one that requests name

Request forced(std::vector<int32_t> prompt, std::vector<int32_t> ids, int free = 0) {
  Request request = greedy(std::move(prompt), 400);
  request.ignore_eos = false;
  request.constraint = std::make_shared<const ListConstraint>(std::move(ids), free);
  return request;
}

TEST(TokenConstraint, ForcesItsIdsAndThenTheEnd) {
  const auto engine = start_engine();
  const Output output = run_one(*engine, forced(yarn_model().text(0, 50), {7, 7, 300, 3}));
  EXPECT_EQ(output.ids, (std::vector<int32_t>{7, 7, 300, 3, kEnd}));
  EXPECT_EQ(output.finish, FinishReason::kStop);
}

TEST(TokenConstraint, MasksHoldForGreedyAndSampledDraws) {
  const auto engine = start_engine();
  for (const double temperature : {0.0, 1.5}) {
    Request request = forced(yarn_model().text(0, 50), {});
    request.sampling.temperature = temperature;
    request.constraint = std::make_shared<const MaskConstraint>(std::vector<int32_t>{7, 31, 200, 7}, false);
    const Output output = run_one(*engine, std::move(request));
    ASSERT_EQ(output.ids.size(), 5u);
    EXPECT_TRUE(output.ids[1] == 31 || output.ids[1] == 32) << output.ids[1];
    EXPECT_EQ(output.ids.back(), kEnd);
    EXPECT_EQ(output.finish, FinishReason::kStop);
  }
}

TEST(TokenConstraint, AMaskLeavesTheEndFreeOrNot) {
  const auto engine = start_engine();
  Request request = forced(yarn_model().text(0, 50), {});
  request.constraint = std::make_shared<const MaskConstraint>(std::vector<int32_t>{7}, true);
  request.sampling.logit_bias = {{kEnd, 100.0f}};
  request.min_tokens = 3;
  const Output output = run_one(*engine, std::move(request));
  ASSERT_EQ(output.ids.size(), 4u) << "not before min_tokens, then at once";
  EXPECT_EQ(output.ids.back(), kEnd);
}

// The next step runs while the ids are on their way, and only its draws wait for them.
TEST(TokenConstraint, DoesNotKeepStepsFromRunningAhead) {
  for (const bool penalty : {false, true}) {
    auto owned = std::make_unique<FakeRunner>(Grid{}, /*run_ahead=*/true);
    const FakeRunner& runner = *owned;
    ModelConfig config;
    config.vocab_size = FakeRunner::kVocab;
    config.max_positions = 4096;
    const auto engine =
        Engine::create(config, std::move(owned), {.max_step_tokens = 128, .max_step_sequences = 4}).value();
    Request request = greedy({1, 2, 3}, 20);
    if (penalty)
      request.sampling.presence_penalty = 1;
    else
      request.constraint = std::make_shared<const ListConstraint>(std::vector<int32_t>{5}, 1000);
    EXPECT_EQ(run_one(*engine, std::move(request)).ids.size(), 20u);
    int ahead = 0;
    const std::vector<std::string> calls = runner.calls();
    for (size_t i = 0; i + 2 < calls.size(); ++i)
      ahead += calls[i].starts_with("run") && calls[i + 1] == "finish" && calls[i + 2].starts_with("draw");
    EXPECT_GE(ahead, 17) << "of 20 steps";
  }
}

TEST(TokenConstraint, LogprobsAreTheModelsOwn) {
  const auto engine = start_engine();
  Request request = forced(yarn_model().text(0, 50), {7});
  request.logprobs = 1;
  const Output output = run_one(*engine, std::move(request));
  ASSERT_EQ(output.logprobs.size(), 2u);
  EXPECT_EQ(output.logprobs[0].token.id, 7);
  EXPECT_EQ(output.logprobs[0].top[0].id, yarn_model().greedy_alone(yarn_model().text(0, 50), 1)[0]);
  EXPECT_LT(output.logprobs[0].token.logprob, output.logprobs[0].top[0].logprob);
}

TEST(TokenConstraint, TheEndCannotComeBefore) {
  const auto engine = start_engine();
  const auto prompt = yarn_model().text(0, 50);
  Request request = forced(prompt, {7}, /*free=*/20);
  // What the model would say next ends the output; a bias makes it say that all the time.
  request.sampling.logit_bias = {{kEnd, 100.0f}};
  const Output output = run_one(*engine, std::move(request));
  ASSERT_EQ(output.ids.size(), 22u);
  EXPECT_EQ(std::count(output.ids.begin(), output.ids.end(), kEnd), 1);
  EXPECT_EQ(output.ids.back(), kEnd);
}

TEST(TokenConstraint, AForcedIdThatEndsTheOutputEndsIt) {
  const auto engine = start_engine();
  Request request = forced(yarn_model().text(0, 50), {7, kEnd, 8});
  request.min_tokens = 10;
  const Output output = run_one(*engine, std::move(request));
  EXPECT_EQ(output.ids, (std::vector<int32_t>{7, kEnd}));
}

// What is complete has nothing else to say.
TEST(TokenConstraint, TheForcedEndComesWhateverTheRequestSaysOfEnds) {
  const auto engine = start_engine();
  const auto ids = [&](const auto& change) {
    Request request = forced(yarn_model().text(0, 50), {7});
    change(request);
    const Output output = run_one(*engine, std::move(request));
    EXPECT_EQ(output.finish, FinishReason::kStop) << output.error;
    return output.ids;
  };
  const std::vector<int32_t> expected = {7, kEnd};
  EXPECT_EQ(ids([](Request& r) { r.min_tokens = 6; }), expected);
  EXPECT_EQ(ids([](Request& r) { r.ignore_eos = true; }), expected);
  EXPECT_EQ(ids([](Request& r) { r.stop_ids = {kStop}; }), expected);
}

// A form knows nothing of them: they come where it allows them, and nowhere else.
TEST(TokenConstraint, StopIdsAreIdsLikeAnyOther) {
  const auto engine = start_engine();
  const auto ids = [&](const auto& change) {
    Request request = forced(yarn_model().text(0, 50), {});
    request.constraint = std::make_shared<const MaskConstraint>(std::vector<int32_t>{7, 31, 200}, false);
    change(request);
    const Output output = run_one(*engine, std::move(request));
    EXPECT_EQ(output.finish, FinishReason::kStop) << output.error;
    return output.ids;
  };
  const auto likes = [](int32_t id) { return std::vector<std::pair<int32_t, float>>{{id, 100.0f}}; };
  EXPECT_EQ(ids([](Request& r) { r.stop_ids = {31, 32}; }).size(), 2u);
  EXPECT_EQ(ids([](Request& r) { r.stop_ids = {kStop}; }).size(), 4u);
  const auto early = ids([&](Request& r) {
    r.stop_ids = {31};
    r.min_tokens = 3;
    r.sampling.logit_bias = likes(31);
  });
  EXPECT_EQ(early.size(), 4u);
  EXPECT_EQ(early[1], 32) << "the other id of the mask";
  EXPECT_EQ(ids([](Request& r) {
              r.stop_ids = {31, 32};
              r.min_tokens = 3;
            }).size(),
            2u)
      << "nothing else is left";
}

TEST(TokenConstraint, EveryChoiceHasAStateOfItsOwn) {
  const auto engine = start_engine();
  Request request = forced(yarn_model().text(0, 130), {7, 8, 9}, /*free=*/2);
  request.n = 4;
  request.sampling = {.temperature = 2.0, .seed = 3};
  const auto stream = engine->submit(std::move(request)).value();
  const std::vector<Output> outputs = read_all(*stream, 4);
  for (const Output& output : outputs) {
    ASSERT_EQ(output.ids.size(), 10u);
    EXPECT_EQ(output.ids[2], 7);
    EXPECT_EQ(output.ids[5], 8);
    EXPECT_EQ(output.ids[8], 9);
    EXPECT_EQ(output.ids[9], kEnd);
  }
  EXPECT_NE(outputs[0].ids, outputs[1].ids) << "what is free differs";
}

// Takes its time, and notes who asks.
class SlowConstraint final : public TokenConstraint {
 public:
  struct Askers {
    std::mutex mutex;
    std::set<std::thread::id> threads;
  };

  explicit SlowConstraint(Askers* askers) : askers_(askers) {}
  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<SlowConstraint>(*this); }
  NextIds next_ids() override {
    {
      const std::lock_guard lock(askers_->mutex);
      askers_->threads.insert(std::this_thread::get_id());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {.allowed = kIds};
  }
  void advance(int32_t id) override { EXPECT_EQ(id, kIds[0]); }

 private:
  static constexpr int32_t kIds[] = {7};
  Askers* askers_;
};

TEST(TokenConstraint, MasksOfAStepAreMadeByAllThreads) {
  SlowConstraint::Askers askers;
  const auto engine = start_engine();
  Request request = greedy(yarn_model().text(0, 50), 6);
  request.n = 8;
  request.constraint = std::make_shared<const SlowConstraint>(&askers);
  const auto stream = engine->submit(std::move(request)).value();
  for (const Output& output : read_all(*stream, 8)) EXPECT_EQ(output.ids, std::vector<int32_t>(6, 7));
  EXPECT_EQ(askers.threads.size() > 1, ThreadPool::default_size() > 1);
}

TEST(TokenConstraint, SurvivesPreemption) {
  EngineOptions options = small_options();
  options.cache_tokens = 6 * kBlockTokens;
  const auto engine = start_engine(options);
  std::vector<int32_t> ids(60);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i + 3);
  const auto request = [&](int i) { return forced(yarn_model().text(i, 100 + i), ids, /*free=*/3); };
  std::vector<std::vector<int32_t>> alone;
  for (int i = 0; i < 4; ++i) {
    const auto quiet = start_engine();
    alone.push_back(run_one(*quiet, request(i)).ids);
    ASSERT_EQ(alone.back().size(), 241u);
  }
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(engine->submit(request(i)).value());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(read_all(*streams[i]).front().ids, alone[i]) << i;
  EXPECT_GT(engine->stats().preemptions, 0) << "the cache was to be too small";
}

// Runs of forced ids with `free` ones before each, and then the end.
Request in_runs(bool tells, int length = 12, int free = 3) {
  std::vector<int32_t> run(length);
  for (int i = 0; i < length; ++i) run[i] = 20 + i;
  Request request = greedy(yarn_model().text(0, 120), 400);
  request.ignore_eos = false;
  request.constraint =
      std::make_shared<const RunsConstraint>(free, run, /*times=*/4, tells, NextIds::End::kOnly);
  return request;
}

TEST(TokenConstraint, ForcedIdsNeedNoStepsOfTheirOwn) {
  for (const bool run_ahead : {false, true}) {
    EngineOptions options = small_options();
    options.run_ahead = run_ahead;
    const auto run = [&](Request request) {
      const auto engine = start_engine(options);
      const Output output = run_one(*engine, std::move(request));
      return std::pair(output.ids, engine->stats());
    };
    const auto [one_by_one, slow] = run(in_runs(false));
    const auto [ids, fast] = run(in_runs(true));
    EXPECT_EQ(ids, one_by_one);
    EXPECT_EQ(ids.size(), 4u * 15 + 1);
    EXPECT_EQ(fast.generated_tokens, slow.generated_tokens);
    // Before a run is known to come, one step of it may be on its way.
    EXPECT_LE(fast.steps, slow.steps - 4 * 10) << "of " << slow.steps;
    const auto [short_ids, few] = run(in_runs(true, /*length=*/3));
    EXPECT_EQ(short_ids.size(), 4u * 6 + 1);
    EXPECT_GE(few.steps, 25) << "a few are drawn: steps run ahead then";
  }
}

// What forced ids may not change: where an output ends, its choices, its penalties, its probabilities.
TEST(TokenConstraint, ForcedIdsAreAnOutputLikeAnyOther) {
  const auto compare = [](const auto& change, int num_outputs = 1) {
    for (const bool run_ahead : {false, true}) {
      EngineOptions options = small_options();
      options.run_ahead = run_ahead;
      std::vector<Output> outputs[2];
      for (const bool tells : {false, true}) {
        Request request = in_runs(tells);
        change(request);
        const auto engine = start_engine(options);
        outputs[tells] = read_all(*engine->submit(std::move(request)).value(), num_outputs);
      }
      for (int i = 0; i < num_outputs; ++i) {
        EXPECT_EQ(outputs[1][i].ids, outputs[0][i].ids);
        EXPECT_EQ(outputs[1][i].finish, outputs[0][i].finish);
        EXPECT_EQ(outputs[1][i].logprobs.size(), outputs[0][i].logprobs.size());
      }
    }
  };
  for (int64_t max_tokens = 1; max_tokens < 24; ++max_tokens)
    compare([&](Request& r) { r.max_tokens = max_tokens; });
  compare([](Request& r) { r.stop_ids.push_back(29); });  // inside a run
  compare([](Request& r) { r.logprobs = 1; });
  compare([](Request& r) { r.sampling.repetition_penalty = 1.5; });
  compare(
      [](Request& r) {
        r.n = 3;
        r.sampling = {.temperature = 2.0, .seed = 3};
      },
      3);
}

TEST(TokenConstraint, ForcedIdsSurvivePreemption) {
  EngineOptions options = small_options();
  options.cache_tokens = 5 * kBlockTokens;
  const auto engine = start_engine(options);
  const auto request = [](int i) {
    Request request = in_runs(true, /*length=*/40, /*free=*/2 + i);
    request.prompts = {yarn_model().text(i, 100 + i)};
    return request;
  };
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(engine->submit(request(i)).value());
  for (int i = 0; i < 4; ++i) {
    const auto quiet = start_engine();
    EXPECT_EQ(read_all(*streams[i]).front().ids, run_one(*quiet, request(i)).ids) << i;
  }
  EXPECT_GT(engine->stats().preemptions, 0) << "the cache was to be too small";
}

}  // namespace
}  // namespace sparrow
