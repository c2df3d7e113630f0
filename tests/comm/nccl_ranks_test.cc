// SPDX-License-Identifier: Apache-2.0
// Ranks that come together over NCCL: whose library is missing or another one is said on all of them, and
// what NCCL reports later is told at once.
#include "comm/nccl/nccl_ranks.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

namespace sparrow {
namespace {

using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

std::string path_of(const std::string& name) {
  return std::string(SPARROW_FAKE_NCCL_DIR) + "/lib" + name + ".so";
}

// What each rank is told, with the library that it has; "" where it has joined.
std::vector<std::string> refusals(const std::vector<std::string>& libraries, const NcclNeeds& needs = {}) {
  const auto world = static_cast<int>(libraries.size());
  std::vector<std::string> said(libraries.size());
  std::vector<Bytes> told(libraries.size());
  std::barrier<> meeting(world);
  std::vector<std::thread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      const std::string path = path_of(libraries[static_cast<size_t>(r)]);
      const auto ranks =
          NcclRanks::join({.grid = {.tp = world, .rank = r}, .needs = needs, .library = path.c_str()},
                          [&](std::span<const std::byte> mine) {
                            told[static_cast<size_t>(r)].assign(mine.begin(), mine.end());
                            meeting.arrive_and_wait();
                            return Result<std::vector<Bytes>>(told);
                          });
      if (!ranks.ok()) said[static_cast<size_t>(r)] = ranks.error().message;
      meeting.arrive_and_wait();
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(NcclRanks, AllSayWhoseLibraryIsTheTrouble) {
  EXPECT_THAT(refusals({"moving_nccl", "moving_nccl"}), Each(""));
  EXPECT_THAT(refusals({"moving_nccl", "moving_nccl", "not_there"}), Each(HasSubstr("rank 2: ")));
  EXPECT_THAT(refusals({"moving_nccl", "not_there"}), Each(HasSubstr("not_there.so was not found: install")));
  EXPECT_THAT(refusals({"fake_nccl_old", "moving_nccl"}), Each(HasSubstr("rank 0: ")));
  EXPECT_THAT(refusals({"fake_nccl", "fake_nccl"}, {.several_nodes = true}),
              Each(HasSubstr("ranks on several nodes need 2.30.4 or newer")));
  EXPECT_THAT(refusals({"moving_nccl", "fake_nccl"}),
              Each("rank 1 has NCCL 2.28.9 and rank 0 2.30.4: give all the same"));
}

TEST(NcclRanks, WhatNcclReportsIsToldWhoeverWaits) {
  const std::string path = path_of("moving_nccl");
  const auto lose = reinterpret_cast<void (*)(bool)>(dlsym(dlopen(path.c_str(), RTLD_NOW), "fake_nccl_lose"));
  const auto aborts = reinterpret_cast<int (*)()>(dlsym(dlopen(path.c_str(), RTLD_NOW), "fake_nccl_aborts"));
  std::atomic<int> times = 0;
  std::string reason;
  auto ranks = NcclRanks::join({.grid = {},
                                .library = path.c_str(),
                                .interval = milliseconds(1),
                                .lost =
                                    [&](const Error& error) {
                                      reason = error.message;
                                      ++times;
                                    }},
                               [](std::span<const std::byte> mine) {
                                 return Result(std::vector<Bytes>{{mine.begin(), mine.end()}});
                               })
                   .value();
  EXPECT_EQ(ranks->version(), "2.30.4");
  EXPECT_FALSE(ranks->failure().has_value());
  lose(true);
  while (times == 0) std::this_thread::yield();
  EXPECT_THAT(reason, HasSubstr("NCCL 2.30.4: remote process exited"));
  EXPECT_THAT(ranks->failure().value().message, HasSubstr("remote process exited"));
  while (!ranks->group().failed() || !ranks->across().failed()) std::this_thread::yield();
  ranks.reset();
  EXPECT_EQ(times, 1);
  // Steps that are under way on a GPU still use what NCCL would free.
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(aborts(), 0);
  lose(false);
}

}  // namespace
}  // namespace sparrow
