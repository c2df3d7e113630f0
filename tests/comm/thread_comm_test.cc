// SPDX-License-Identifier: Apache-2.0
#include "comm/thread_comm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "comm/tree_sum.h"
#include "support/comm/comm_cases.h"

namespace sparrow {
namespace {

void on_all_ranks(int world, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r) threads.emplace_back(body, static_cast<size_t>(r));
  for (std::thread& thread : threads) thread.join();
}

TEST(TreeSum, AddsNeighboursFirst) {
  // In f32 2^24 + 1 is 2^24: every other order gives another sum.
  const float big = 0x1p24f, one = 1.0f, minus = -0x1p24f;
  const std::vector<const float*> parts = {&one, &one, &big, &one, &minus, &one};
  float sum = 0;
  tree_sum(parts, 1, &sum);
  // (1 + 1) + (2^24 + 1) = 2^24 + 2; -2^24 + 1 is exact.
  EXPECT_EQ(sum, 3.0f);
}

TEST(ThreadComm, RandomCallsOfEverySizeGiveTheModelsBits) {
  for (int size = 1; size <= 8; ++size) {
    const auto ranks = thread_comms({.tp = size});
    std::vector<uint64_t> hashes(ranks.size());
    on_all_ranks(size, [&](size_t r) {
      EXPECT_EQ(run_comm_cases(*ranks[r].group, 7, 60, &hashes[r]), "") << size << " ranks";
    });
    for (const uint64_t hash : hashes) EXPECT_EQ(hash, hashes[0]);
  }
}

TEST(ThreadComm, GroupsAndThoseAcrossThemAreApart) {
  const Grid grid{.tp = 2, .dp = 3};
  const auto ranks = thread_comms(grid);
  on_all_ranks(grid.world(), [&](size_t r) {
    const Grid at{.tp = 2, .dp = 3, .rank = static_cast<int>(r)};
    EXPECT_EQ(ranks[r].group->rank(), at.tp_rank());
    EXPECT_EQ(ranks[r].across->rank(), at.group());
    EXPECT_EQ(ranks[r].world->rank(), at.rank);
    const auto sum = [](Communicator& comm, float value) {
      comm.all_reduce(Tensor(&value, DType::kF32, {1, 1}));
      return value;
    };
    const auto one = static_cast<float>(1 << r);
    EXPECT_EQ(sum(*ranks[r].group, one), static_cast<float>(0b11 << 2 * at.group()));
    EXPECT_EQ(sum(*ranks[r].across, one), static_cast<float>(0b010101 << at.tp_rank()));
    EXPECT_EQ(sum(*ranks[r].world, one), static_cast<float>(0b111111));
  });
}

TEST(ThreadComm, AbortReleasesThoseWhoWaitAnywhere) {
  const auto ranks = thread_comms({.tp = 2, .dp = 2});
  std::vector<std::thread> threads;
  std::atomic<int> back = 0;
  for (size_t r = 0; r < 3; ++r) {  // rank 3 never comes
    threads.emplace_back([&, r] {
      float value = 1;
      (r == 2 ? ranks[r].group : ranks[r].world)->all_reduce(Tensor(&value, DType::kF32, {1, 1}));
      ++back;
    });
  }
  EXPECT_EQ(back, 0);
  ranks[3].across->abort();
  for (std::thread& thread : threads) thread.join();
  for (const RankComms& rank : ranks) {
    EXPECT_TRUE(rank.group->failed() && rank.across->failed() && rank.world->failed());
    float value = 1;
    rank.world->all_reduce(Tensor(&value, DType::kF32, {1, 1}));  // returns
  }
}

Bytes bytes(const std::string& text) {
  const auto span = std::as_bytes(std::span(text));
  return {span.begin(), span.end()};
}

TEST(ThreadLink, MessagesArriveInOrderAndRepliesByRank) {
  const auto links = thread_links(4);
  on_all_ranks(4, [&](size_t r) {
    ControlLink& link = *links[r];
    for (int i = 0; i < 3000; ++i) {  // more than may be left unread
      const Bytes message = bytes("message " + std::to_string(i));
      if (r == 0) {
        ASSERT_TRUE(link.send(message).ok());
      } else {
        const auto got = link.receive();
        ASSERT_TRUE(got.ok());
        ASSERT_EQ(got.value(), message);
      }
    }
    if (r != 0) {
      ASSERT_TRUE(link.reply(bytes("rank " + std::to_string(r))).ok());
      return;
    }
    for (int from = 3; from > 0; --from) {
      const auto got = link.receive_reply(from);
      ASSERT_TRUE(got.ok());
      EXPECT_EQ(got.value(), bytes("rank " + std::to_string(from)));
    }
  });
}

TEST(ThreadLink, FailureEndsAllCallsAndTheFirstReasonStays) {
  const auto links = thread_links(3);
  std::thread waits([&] {
    const auto got = links[1]->receive();
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().message, "rank 2: out of memory");
  });
  links[2]->fail(2, "out of memory");
  links[0]->fail(0, "interrupted");
  waits.join();
  ASSERT_TRUE(links[1]->failure().has_value());
  EXPECT_EQ(links[1]->failure()->rank, 2);
  EXPECT_EQ(links[1]->failure()->reason, "out of memory");
  EXPECT_FALSE(links[0]->send(bytes("x")).ok());
  EXPECT_FALSE(links[1]->reply(bytes("x")).ok());
  EXPECT_FALSE(links[0]->receive_reply(1).ok());
}

}  // namespace
}  // namespace sparrow
