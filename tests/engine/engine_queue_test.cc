// SPDX-License-Identifier: Apache-2.0
// Places in the queue, seen while the engine's thread is held in the middle of a step.
#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/engine/engine_client.h"

namespace sparrow {
namespace {

using namespace test;

class Gate {
 public:
  // The engine's side: waits to be let through.
  void pass() {
    std::unique_lock lock(mutex_);
    held_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_ || permitted_; });
    held_ = permitted_ = false;
  }

  void wait_until_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_; });
  }
  // Returns when it is held again.
  void let_through_once() {
    std::unique_lock lock(mutex_);
    permitted_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return held_ && !permitted_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false, held_ = false, permitted_ = false;
};

class GateConstraint final : public TokenConstraint {
 public:
  explicit GateConstraint(Gate& gate) : gate_(gate) {}
  std::unique_ptr<TokenConstraint> copy() const override { return std::make_unique<GateConstraint>(gate_); }
  NextIds next_ids() override {
    gate_.pass();
    return {};
  }
  void advance(int32_t) override {}

 private:
  Gate& gate_;
};

// An engine that is held in a step of its only running request.
struct HeldEngine {
  explicit HeldEngine(int max_queued_requests) {
    EngineOptions options = small_options();
    options.max_step_sequences = 1;
    options.max_queued_requests = max_queued_requests;
    engine = start_engine(options);
    Request request = greedy(yarn_model().text(0, 20), 1000);
    request.constraint = std::make_shared<GateConstraint>(gate);
    running = engine->submit(std::move(request)).value();
    gate.wait_until_held();
  }
  ~HeldEngine() { gate.open(); }

  Result<std::unique_ptr<TokenStream>> submit(int number) const {
    return engine->submit(greedy(yarn_model().text(number, 20), 2));
  }
  // In the step it is held in then, the engine knows of all that was submitted before.
  void step() { gate.let_through_once(); }

  Gate gate;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TokenStream> running;
};

// Dropped before or after the engine's thread has seen them: in neither case does the next one wait for a
// step.
TEST(EngineQueue, ACancelledRequestGivesItsPlaceInTheQueueBackAtOnce) {
  HeldEngine held(/*max_queued_requests=*/3);  // the running one counts until its first step is over
  held.step();
  for (const bool seen : {false, true}) {
    std::vector<std::unique_ptr<TokenStream>> waiting;
    for (int i = 1; i <= 3; ++i) waiting.push_back(held.submit(i).value());
    if (seen) held.step();
    EXPECT_EQ(held.submit(4).error().code, Errc::kBusy);
    EXPECT_EQ(held.engine->stats().queued_requests, 3);
    waiting.erase(waiting.begin() + 1);
    EXPECT_EQ(held.engine->stats().queued_requests, 2) << "seen " << seen;
    EXPECT_TRUE(held.submit(5).ok()) << "seen " << seen;  // and leaves at once
    waiting.clear();
    EXPECT_EQ(held.engine->stats().queued_requests, 0) << "seen " << seen;
  }
  held.step();  // hears of it
  held.step();  // has told what it had left by then
  EXPECT_EQ(held.engine->stats().live_requests, 1);
}

TEST(EngineQueue, ARequestCancelledBeforeTheEngineSawItEndsAtOnceAndIsCounted) {
  HeldEngine held(/*max_queued_requests=*/8);
  Request request = greedy(yarn_model().text(1, 20), 2);
  request.prompts.push_back(yarn_model().text(2, 30));
  const auto stream = held.engine->submit(std::move(request)).value();
  stream->cancel();
  for (int output = 0; output < 2; ++output) {
    const auto event = stream->try_next();
    ASSERT_TRUE(event);
    EXPECT_EQ(event->output, output);
    EXPECT_EQ(event->finish, FinishReason::kCancelled);
  }
  EXPECT_TRUE(stream->done());
  const EngineStats stats = held.engine->stats();
  EXPECT_EQ(stats.requests, 1) << "the running one is counted when its step is over";
  EXPECT_EQ(stats.cancelled, 2);
  EXPECT_EQ(stats.prompt_tokens, 50);
}

// During one long step any number of clients may come and go: what they leave must not add up.
TEST(EngineQueue, ClientsThatComeAndGoDuringAStepLeaveNothing) {
  HeldEngine held(/*max_queued_requests=*/4);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(held.submit(i).ok()) << i;
  EXPECT_EQ(held.engine->stats().live_requests, 1);
  held.running->cancel();
  held.gate.open();
  held.engine->drain();
  EXPECT_EQ(held.engine->stats().cancelled, 1001);
}

}  // namespace
}  // namespace sparrow
