// SPDX-License-Identifier: Apache-2.0
#include "media/fair_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace sparrow {
namespace {

constexpr QueueLimits kNoLimit{.items = 1000, .bytes = 1000};
using Queue = FairQueue<std::string>;

std::string order_of(Queue& queue) {
  std::string order;
  while (const auto item = queue.pop()) order += *item;
  return order;
}

TEST(FairQueue, OwnersShareByCost) {
  Queue queue(kNoLimit, kNoLimit);
  for (const char* item : {"a", "b", "c", "d"}) queue.push("cheap", 0, 1, item);
  for (const char* item : {"X", "Y"}) queue.push("dear", 0, 2, item);
  EXPECT_EQ(order_of(queue), "aXbcYd");
}

TEST(FairQueue, WhoComesLateHasSavedNothingUp) {
  Queue queue(kNoLimit, kNoLimit);
  for (int i = 0; i < 9; ++i) queue.push("early", 0, 1, "e");
  for (int i = 0; i < 5; ++i) queue.pop();
  for (int i = 0; i < 4; ++i) queue.push("late", 0, 1, "l");
  EXPECT_EQ(order_of(queue), "lelelele");
}

TEST(FairQueue, WhatIsPoppedCountsUntilItIsReleased) {
  Queue queue({.items = 3, .bytes = 100}, {.items = 2, .bytes = 80});
  EXPECT_EQ(queue.push("a", 40, 1, "1"), Queue::Push::kTaken);
  EXPECT_EQ(queue.push("a", 41, 1, "2"), Queue::Push::kOwnerFull);
  EXPECT_EQ(queue.push("a", 40, 1, "2"), Queue::Push::kTaken);
  EXPECT_EQ(queue.push("a", 0, 1, "3"), Queue::Push::kOwnerFull);
  EXPECT_EQ(queue.push("b", 21, 1, "4"), Queue::Push::kFull);
  EXPECT_EQ(queue.push("b", 20, 1, "4"), Queue::Push::kTaken);
  EXPECT_EQ(queue.push("b", 0, 1, "5"), Queue::Push::kFull);
  EXPECT_EQ(queue.pop(), "1");
  EXPECT_EQ(queue.push("b", 0, 1, "5"), Queue::Push::kFull);
  queue.release("a", 40);
  EXPECT_EQ(queue.push("b", 40, 1, "5"), Queue::Push::kTaken);
  EXPECT_EQ(queue.num_waiting(), 3);
  EXPECT_EQ(queue.push("c", ~size_t{0}, 1, "6"), Queue::Push::kFull);
}

TEST(FairQueue, WhatMayNotRunHoldsNothingUp) {
  Queue queue(kNoLimit, kNoLimit);
  for (const char* item : {"X", "Y", "a", "Z"}) queue.push("first", 0, 1, item);
  for (const char* item : {"b", "c"}) queue.push("second", 0, 1, item);
  const auto is_small = [](const std::string& item) { return item >= "a"; };
  EXPECT_EQ(queue.pop(is_small), "a");
  EXPECT_EQ(queue.pop(is_small), "b");
  EXPECT_EQ(queue.pop(is_small), "c");
  EXPECT_EQ(queue.pop(is_small), std::nullopt);
  EXPECT_EQ(queue.num_waiting(), 3);
  EXPECT_EQ(order_of(queue), "XYZ");
}

TEST(FairQueue, GivesBackWhatWaits) {
  Queue queue(kNoLimit, kNoLimit);
  queue.push("a", 0, 1, "1");
  queue.push("a", 0, 1, "2");
  EXPECT_EQ(queue.remove([](const std::string& item) { return item == "1"; }), "1");
  EXPECT_EQ(queue.remove([](const std::string& item) { return item == "1"; }), std::nullopt);
  EXPECT_EQ(order_of(queue), "2");
}

}  // namespace
}  // namespace sparrow
