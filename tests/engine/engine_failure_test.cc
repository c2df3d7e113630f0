// SPDX-License-Identifier: Apache-2.0
// When what runs the model fails, every stream ends with the reason, at once, and nobody gets an id that was
// drawn after it.
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "config/config.h"
#include "engine/engine_core.h"
#include "support/engine/engine_client.h"
#include "support/engine/fake_runner.h"

namespace sparrow {
namespace {

using test::FakeRunner;
using test::greedy;

const Error kFailure{Errc::kStopped, "rank 2: no sign of life for 5 s"};

const ModelConfig& fake_config() {
  static const ModelConfig config = [] {
    ModelConfig made;
    made.vocab_size = FakeRunner::kVocab;
    made.max_positions = 4096;
    return made;
  }();
  return config;
}

// A step that lasts until it is told to end.
class Gate {
 public:
  void wait() {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return open_; });
  }
  void await_waiting() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_waiting_ > 0; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_waiting_ = 0;
  bool open_ = false;
};

TEST(EngineFailure, StreamsEndWhileTheEngineIsStuckInAStep) {
  Gate gate;
  auto runner = std::make_unique<FakeRunner>();
  runner->on_run = [&gate] { gate.wait(); };
  const auto engine =
      Engine::create(fake_config(), std::move(runner), {.max_step_tokens = 128, .max_step_sequences = 1})
          .value();
  Request two = greedy({1, 2, 3}, 10);
  two.prompts.push_back({4, 5});
  const auto running = engine->submit(std::move(two)).value();
  gate.await_waiting();
  const auto queued = engine->submit(greedy({6}, 10)).value();
  engine->fail(kFailure);
  for (const test::Output& output : test::read_all(*running, 2)) {
    EXPECT_EQ(output.finish, FinishReason::kError);
    EXPECT_EQ(output.error, kFailure.message);
  }
  EXPECT_EQ(test::read_all(*queued).front().error, kFailure.message);
  const auto refused = engine->submit(greedy({7}, 10));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Errc::kStopped);
  EXPECT_EQ(refused.error().message, kFailure.message);
  EXPECT_EQ(engine->failure()->message, kFailure.message);
  engine->drain();  // waits for nobody
  EXPECT_TRUE(engine->waiting().empty());
  gate.open();
}

TEST(EngineFailure, IdsThatWereDrawnAfterItAreNotHandedOut) {
  for (const bool run_ahead : {false, true}) {
    auto owned = std::make_unique<FakeRunner>(Grid{}, run_ahead);
    FakeRunner& runner = *owned;
    int num_steps = 0;
    runner.on_run = [&] {
      if (++num_steps == 5) runner.fail(kFailure);
    };
    const auto engine =
        Engine::create(fake_config(), std::move(owned), {.max_step_tokens = 128, .max_step_sequences = 4})
            .value();
    const auto stream = engine->submit(greedy({1, 2, 3}, 100)).value();
    const test::Output output = test::read_all(*stream).front();
    // The step ahead is the fifth while the third's ids are still to come.
    EXPECT_EQ(output.ids.size(), run_ahead ? 3u : 4u);
    EXPECT_EQ(output.finish, FinishReason::kError);
    EXPECT_EQ(output.error, kFailure.message);
    EXPECT_FALSE(engine->submit(greedy({1}, 1)).ok());
    EXPECT_EQ(engine->stats().failed, 1);
  }
}

TEST(EngineFailure, AnOutputThatHasEndedStaysAsItIs) {
  TokenChannel channel(2, 8, [] {});
  channel.push({.output = 1, .id = 7, .finish = FinishReason::kStop});
  channel.fail("gone");
  channel.fail("gone again");
  channel.push({.output = 0, .id = 8});
  const auto first = channel.try_next(), second = channel.try_next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->finish, FinishReason::kStop);
  EXPECT_EQ(second->output, 0);
  EXPECT_EQ(second->error, "gone");
  EXPECT_FALSE(channel.try_next());
  EXPECT_TRUE(channel.done());
}

}  // namespace
}  // namespace sparrow
