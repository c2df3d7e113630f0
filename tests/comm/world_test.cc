// SPDX-License-Identifier: Apache-2.0
// Ranks as processes: they find each other, and everything they send arrives.
#include "comm/world.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <thread>

#include "base/strf.h"
#include "comm/thread_comm.h"
#include "support/comm/comm_cases.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

Bytes random_bytes(uint64_t seed, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    bytes[i] = static_cast<std::byte>(seed >> 56);
  }
  return bytes;
}

// Mostly small, sometimes larger than every ring.
size_t random_size(std::mt19937_64& random) {
  const uint64_t kind = random() % 50;
  return static_cast<size_t>(kind == 0 ? random() % 6'000'000 : kind == 1 ? 0 : random() % 4000);
}

std::string exchange(World& world) {
  for (uint64_t round = 0; round < 3; ++round) {
    const auto part = [&](int rank) {
      return random_bytes(round * 100 + static_cast<uint64_t>(rank), static_cast<size_t>(rank * 37)
                                                                         << 2 * round);
    };
    const auto all = world.exchange(part(world.grid().rank));
    if (!all.ok()) return all.error().message;
    for (int r = 0; r < world.grid().world(); ++r)
      if (all->at(static_cast<size_t>(r)) != part(r)) return strf("exchange: other bytes of rank {}", r);
  }
  return "";
}

std::string messages(World& world, int count) {
  ControlLink& link = world.link();
  std::mt19937_64 random(5);  // in step on all ranks
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = random();
    const Bytes message = random_bytes(seed, random_size(random));
    const bool replies = random() % 3 == 0;
    const size_t reply_size = random_size(random);
    const auto reply = [&](int rank) { return random_bytes(seed + static_cast<uint64_t>(rank), reply_size); };
    if (link.rank() != 0) {
      const auto got = link.receive();
      if (!got.ok()) return got.error().message;
      if (got.value() != message) return strf("message {} is another", i);
      if (replies && !link.reply(reply(link.rank())).ok()) return "no reply";
      continue;
    }
    if (!link.send(message).ok()) return "not sent";
    for (int r = link.world() - 1; replies && r > 0; --r) {
      const auto got = link.receive_reply(r);
      if (!got.ok()) return got.error().message;
      if (got.value() != reply(r)) return strf("reply {} of rank {} is another", i, r);
    }
  }
  return "";
}

constexpr int kCalls = 25;

// What ThreadComm makes of the same cases.
uint64_t hash_between_threads(int size) {
  const auto ranks = thread_comms({.tp = size});
  std::vector<uint64_t> hashes(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r)
    threads.emplace_back(
        [&, r] { run_comm_cases(*ranks[r].world, static_cast<uint64_t>(size), kCalls, &hashes[r]); });
  for (std::thread& thread : threads) thread.join();
  return hashes[0];
}

std::map<int, uint64_t> hashes_between_threads(const Grid& grid) {
  std::map<int, uint64_t> hashes;
  for (const int size : {grid.tp, grid.dp, grid.world()}) hashes[size] = hash_between_threads(size);
  return hashes;
}

std::string everything(const WorldOptions& options, const std::map<int, uint64_t>& hashes) {
  auto joined = World::join(options);
  if (!joined.ok()) return joined.error().message;
  World& world = **joined;
  std::string wrong = exchange(world);
  if (wrong.empty()) wrong = messages(world, 60);
  const RankComms comms = world.comms();
  for (Communicator* comm : {comms.group.get(), comms.across.get(), comms.world.get()}) {
    if (!wrong.empty()) return wrong;
    uint64_t hash = 0;
    wrong = run_comm_cases(*comm, static_cast<uint64_t>(comm->size()), kCalls, &hash);
    if (wrong.empty() && hash != hashes.at(comm->size())) wrong = "bits differ from those of threads";
  }
  if (world.link().failure()) wrong += "; " + world.link().failure()->reason;
  return wrong;
}

TEST(World, RanksOfANodeExchangeWhatTheyMust) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2}, Grid{.tp = 4}, Grid{.tp = 2, .dp = 2}, Grid{.tp = 8},
                           Grid{.tp = 4, .dp = 2}, Grid{.dp = 3}}) {
    const auto hashes = hashes_between_threads(grid);
    RankProcesses ranks(grid.world(), [&](int rank) { return everything(test_world(grid, rank), hashes); });
    EXPECT_EQ(ranks.complaints(), "") << describe(grid);
  }
}

TEST(World, SeveralNodesAreAsOne) {
  const auto run = [](const Grid& grid, int local_world) {
    const int port = free_port();
    const auto hashes = hashes_between_threads(grid);
    RankProcesses ranks(grid.world(), [&](int rank) {
      return everything(test_world(grid, rank, local_world, port), hashes);
    });
    EXPECT_EQ(ranks.complaints(), "") << describe(grid) << ", " << local_world << " ranks on a node";
  };
  run({.tp = 2}, 1);
  run({.tp = 2, .dp = 2}, 2);
  run({.tp = 3, .dp = 2}, 2);
  run({.tp = 2, .dp = 4}, 4);
}

TEST(World, SixtyFourProcessesFindEachOther) {
  const Grid grid{.tp = 64};
  RankProcesses ranks(64, [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank));
    if (!world.ok()) return world.error().message;
    return exchange(**world);
  });
  EXPECT_EQ(ranks.complaints(), "");
}

TEST(World, OneWhoHasLeftIsNoFailureAndKeepsNobodyWaiting) {
  const Grid grid{.tp = 3};
  RankProcesses ranks(3, [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank));
    if (!world.ok()) return world.error().message;
    if (rank == 2) return "";
    if (rank == 1) {
      float value = 1;
      (*world)->comms().world->all_reduce(Tensor(&value, DType::kF32, {1, 1}));
      if (!(*world)->comms().world->failed()) return "a sum without rank 2";
    } else {
      const auto reply = (*world)->link().receive_reply(2);
      if (reply.ok() || reply.error().message != "rank 2 has left") return "a reply of rank 2";
    }
    return (*world)->link().failure() ? (*world)->link().failure()->reason : "";
  });
  EXPECT_EQ(ranks.complaints(), "");
}

}  // namespace
}  // namespace sparrow
