// SPDX-License-Identifier: Apache-2.0
#include "engine/token_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace sparrow {
namespace {

using std::chrono::milliseconds;

// Both ends of a stream, and how often the engine was called.
struct Ends {
  explicit Ends(int num_outputs = 1, size_t events_per_output = 4)
      : channel(std::make_shared<TokenChannel>(num_outputs, events_per_output, [this] { ++calls; })),
        stream(std::make_unique<TokenStream>(channel)) {}

  void push(int32_t id) { channel->push({.id = id}); }
  void end(FinishReason reason, int output = 0) { channel->push({.output = output, .finish = reason}); }

  std::atomic<int> calls{0};
  std::shared_ptr<TokenChannel> channel;
  std::unique_ptr<TokenStream> stream;
};

TEST(TokenStream, GivesEventsInOrderAndThenIsDone) {
  Ends ends;
  EXPECT_FALSE(ends.stream->try_next());
  ends.push(7);
  ends.push(8);
  ends.end(FinishReason::kLength);
  EXPECT_EQ(ends.stream->next()->id, 7);
  EXPECT_EQ(ends.stream->try_next()->id, 8);
  EXPECT_FALSE(ends.stream->done());
  EXPECT_EQ(ends.stream->next()->finish, FinishReason::kLength);
  EXPECT_TRUE(ends.stream->done());
  EXPECT_FALSE(ends.stream->next()) << "returns at once";
}

TEST(TokenStream, IsDoneOnlyWhenEveryOutputHasEnded) {
  Ends ends(2);
  ends.end(FinishReason::kStop, 1);
  EXPECT_TRUE(ends.stream->next());
  EXPECT_FALSE(ends.stream->done());
  EXPECT_FALSE(ends.stream->next(milliseconds(1)));
  ends.end(FinishReason::kStop, 0);
  EXPECT_TRUE(ends.stream->next());
  EXPECT_TRUE(ends.stream->done());
}

TEST(TokenStream, NextWaitsForAnEventButNotPastItsTimeout) {
  Ends ends;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(ends.stream->next(milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
  std::thread engine([&] { ends.push(3); });
  EXPECT_EQ(ends.stream->next()->id, 3);
  engine.join();
}

TEST(TokenStream, AFullOneHasNoRoomUntilItIsHalfEmptyAndThenCallsTheEngineOnce) {
  Ends ends(1, 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(ends.channel->has_room()) << i;
    ends.push(i);
  }
  EXPECT_FALSE(ends.channel->has_room());
  (void)ends.stream->next();
  EXPECT_EQ(ends.calls, 0);
  (void)ends.stream->next();
  EXPECT_EQ(ends.calls, 1);
  EXPECT_TRUE(ends.channel->has_room());
  (void)ends.stream->next();
  EXPECT_EQ(ends.calls, 1);
}

TEST(TokenStream, RoomIsForOneEventOfEveryOutput) {
  Ends ends(3, 2);
  EXPECT_TRUE(ends.channel->has_room());
  for (int i = 0; i < 3; ++i) ends.push(i);
  EXPECT_TRUE(ends.channel->has_room());
  ends.push(3);
  EXPECT_FALSE(ends.channel->has_room()) << "two places are left, and three may be needed";
}

TEST(TokenStream, CancellingCallsTheEngineOnceAndDroppingCancels) {
  Ends ends;
  EXPECT_FALSE(ends.channel->cancelled());
  ends.stream->cancel();
  ends.stream->cancel();
  EXPECT_TRUE(ends.channel->cancelled());
  EXPECT_EQ(ends.calls, 1);
  ends.stream.reset();
  EXPECT_EQ(ends.calls, 1);

  Ends dropped;
  dropped.stream.reset();
  EXPECT_TRUE(dropped.channel->cancelled());
  EXPECT_EQ(dropped.calls, 1);
}

TEST(TokenStream, DroppingAFinishedOneCancelsNothing) {
  Ends ends;
  ends.end(FinishReason::kStop);
  (void)ends.stream->next();
  ends.stream.reset();
  EXPECT_FALSE(ends.channel->cancelled());
  EXPECT_EQ(ends.calls, 0);
}

TEST(TokenStream, TheWakeCallComesWhenThereIsSomethingAgain) {
  Ends ends;
  ends.push(1);
  int wakes = 0;
  ends.stream->set_wake([&] { ++wakes; });
  EXPECT_EQ(wakes, 1) << "something was there already";
  ends.push(2);
  EXPECT_EQ(wakes, 1) << "the reader has not caught up";
  (void)ends.stream->try_next();
  (void)ends.stream->try_next();
  ends.push(3);
  EXPECT_EQ(wakes, 2);
}

}  // namespace
}  // namespace sparrow
