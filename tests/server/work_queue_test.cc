// SPDX-License-Identifier: Apache-2.0
#include "server/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>

namespace sparrow {
namespace {

using testing::ElementsAre;

constexpr size_t kMega = 1 << 20;

// Pushes work that tells its name, and pops all of it.
class OrderTest : public testing::Test {
 protected:
  uint64_t push(const std::string& key, size_t bytes, const std::string& name) {
    return order_.push(key, bytes, [this, name] { done_.push_back(name); });
  }
  bool pop(size_t max_bytes = SIZE_MAX) {
    auto next = order_.pop(max_bytes);
    if (next) next->work();
    return next.has_value();
  }

  WorkOrder order_;
  std::vector<std::string> done_;
};

TEST_F(OrderTest, ShortWorkOfAKeyGoesBeforeItsLongWork) {
  push("", 31 * kMega, "long 1");
  push("", 31 * kMega, "long 2");
  push("", 12 << 10, "chat");
  while (pop()) continue;
  EXPECT_THAT(done_, ElementsAre("chat", "long 1", "long 2"));
}

// Shorter work that keeps coming may pass until as much as the long one has been done.
TEST_F(OrderTest, NothingIsOvertakenByMoreThanItsOwnSize) {
  push("", 10 * kMega, "long");
  int overtaken = 0;
  push("", kMega, "short");
  while (pop() && done_.back() != "long") {
    ++overtaken;
    ASSERT_LE(overtaken, 11);
    push("", kMega, "short");
  }
  EXPECT_GE(overtaken, 9);
}

TEST_F(OrderTest, KeysTakeTurnsByBytes) {
  for (int i = 0; i < 4; ++i) push("greedy", 4 * kMega, "G");
  ASSERT_TRUE(pop());
  // Comes later, and is served before the rest of the other's work.
  for (int i = 0; i < 8; ++i) push("modest", kMega, "m");
  while (pop()) continue;
  ASSERT_EQ(done_.size(), 12u);
  EXPECT_EQ(std::vector(done_.begin(), done_.begin() + 7),
            (std::vector<std::string>{"G", "m", "m", "m", "m", "m", "G"}));
}

// A key that sends one piece after the other does not shut out one that has sent all at once.
TEST_F(OrderTest, ComingBackIsNoAdvantage) {
  for (int i = 0; i < 3; ++i) push("patient", kMega, "p");
  for (int i = 0; i < 6; ++i) {
    push("eager", kMega, "e");
    ASSERT_TRUE(pop());
  }
  EXPECT_EQ(std::count(done_.begin(), done_.end(), "p"), 3);
}

TEST_F(OrderTest, StayingAwaySavesNothingUp) {
  for (int i = 0; i < 10; ++i) push("busy", kMega, "b");
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(pop());
  for (int i = 0; i < 4; ++i) push("busy", kMega, "b");
  for (int i = 0; i < 4; ++i) push("new", kMega, "n");
  done_.clear();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pop());
  EXPECT_GE(std::count(done_.begin(), done_.end(), "b"), 1);
}

TEST_F(OrderTest, TooLongWorkIsPassedOver) {
  push("", 2 * kMega, "long");
  EXPECT_FALSE(pop(kMega));
  push("", kMega, "short");
  EXPECT_TRUE(pop(kMega));
  EXPECT_THAT(done_, ElementsAre("short"));
}

TEST_F(OrderTest, WhatIsTakenBackIsNotDone) {
  const uint64_t id = push("", kMega, "unwanted");
  push("", kMega, "wanted");
  EXPECT_TRUE(order_.remove(id));
  EXPECT_FALSE(order_.remove(id));
  while (pop()) continue;
  EXPECT_THAT(done_, ElementsAre("wanted"));
}

// All threads that may do long work are held in it: short work is done all the same.
TEST(WorkQueue, ShortWorkAlwaysHasAThread) {
  constexpr int kThreads = 3, kLong = 8;
  std::latch begun(kThreads - 1), release(1), short_done(1), all_done(kLong);
  std::atomic<int> started{0}, running{0}, most{0};
  WorkQueue queue(kThreads, /*long_bytes=*/kMega);
  for (int i = 0; i < kLong; ++i)
    queue.post("key", 31 * kMega, [&] {
      const int now = ++running;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) continue;
      if (++started < kThreads) begun.count_down();
      release.wait();
      --running;
      all_done.count_down();
    });
  begun.wait();
  queue.post("key", 12 << 10, [&] { short_done.count_down(); });
  short_done.wait();  // would wait for ever
  EXPECT_EQ(queue.num_waiting(), kLong - (kThreads - 1));
  release.count_down();
  all_done.wait();
  EXPECT_EQ(most, kThreads - 1);
}

TEST(WorkQueue, EndsWithWorkLeft) {
  std::latch begun(1);
  std::atomic<int> done{0};
  {
    WorkQueue queue(2, kMega);
    queue.post("", 2 * kMega, [&] {
      begun.count_down();
      ++done;
    });
    begun.wait();
    for (int i = 0; i < 100; ++i) queue.post("", 2 * kMega, [&] { ++done; });
  }
  EXPECT_GE(done, 1);
}

}  // namespace
}  // namespace sparrow
