// SPDX-License-Identifier: Apache-2.0
// A rank that dies or hangs, anywhere: all others know who it was, and nobody waits on.
#include <gtest/gtest.h>

#include <csignal>

#include <random>
#include <thread>

#include "base/strf.h"
#include "comm/world.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

// Whoever is not yet suspected of anything may be without a processor for a while.
constexpr std::chrono::milliseconds kPingTimeout{4000};

// Works until the link fails. "" when it did, naming `victim`.
std::string work_until_failure(World& world, int victim, SharedCounter& at_work) {
  ControlLink& link = world.link();
  const RankComms comms = world.comms();
  std::vector<float> x(5000, 1.0f);
  std::mt19937_64 random(3);  // in step on all ranks
  for (int step = 0; !link.failure(); ++step) {
    if (step == 5) ++*at_work;
    const Bytes message(random() % 20000);
    if (link.rank() == 0) {
      if (!link.send(message).ok()) continue;
    } else if (!link.receive().ok()) {
      continue;
    }
    for (Communicator* comm : {comms.group.get(), comms.across.get(), comms.world.get()})
      comm->all_reduce(Tensor(x.data(), DType::kF32, {50, 100}));
    if (link.rank() != 0) {
      if (!link.reply(Bytes(100)).ok()) continue;
    } else {
      for (int r = 1; r < link.world(); ++r)
        if (!link.receive_reply(r).ok()) break;
    }
  }
  const auto failure = *link.failure();
  if (failure.rank != victim) return strf("blames rank {}: {}", failure.rank, failure.reason);
  // Everything returns from now on.
  comms.world->all_reduce(Tensor(x.data(), DType::kF32, {50, 100}));
  if (!comms.world->failed()) return "a communicator that has not failed";
  if (world.exchange({}).ok()) return "an exchange after the failure";
  const bool works = link.rank() == 0 ? link.send({}).ok() || link.receive_reply(1).ok()
                                      : link.receive().ok() || link.reply({}).ok();
  return works ? "a link that works after the failure" : "";
}

void lose(const Grid& grid, int local_world, int victim, int signal, uint64_t seed) {
  SCOPED_TRACE(strf("{}, {} on a node, rank {} gets signal {}, seed {}", describe(grid), local_world, victim,
                    signal, seed));
  SharedCounter at_work;
  const int port = free_port();
  RankProcesses ranks(grid.world(), [&](int rank) -> std::string {
    WorldOptions options = test_world(grid, rank, local_world, port);
    options.ping_timeout = kPingTimeout;
    auto world = World::join(options);
    if (!world.ok()) return world.error().message;
    return work_until_failure(**world, victim, at_work);
  });
  at_work.wait_for(grid.world());
  std::this_thread::sleep_for(std::chrono::microseconds(std::mt19937_64(seed)() % 20000));
  ranks.signal(victim, signal);
  // The others end while a rank that hangs still does.
  for (int r = 0; r < grid.world(); ++r) {
    if (r == victim) continue;
    EXPECT_EQ(ranks.wait(r), "") << "rank " << r;
  }
  ranks.signal(victim, SIGKILL);
  EXPECT_EQ(ranks.wait(victim), "killed by signal 9");
}

TEST(WorldFailure, EveryRankOfANodeMayDie) {
  for (int victim = 0; victim < 4; ++victim)
    lose({.tp = 2, .dp = 2}, 4, victim, SIGKILL, static_cast<uint64_t>(victim));
}

TEST(WorldFailure, EveryRankOfANodeMayHang) {
  for (int victim = 0; victim < 3; ++victim)
    lose({.tp = 3}, 3, victim, SIGSTOP, static_cast<uint64_t>(victim));
}

TEST(WorldFailure, RanksOfOtherNodesMayDieOrHang) {
  for (int victim = 0; victim < 4; ++victim)
    lose({.tp = 2, .dp = 2}, 2, victim, victim % 2 == 0 ? SIGKILL : SIGSTOP, static_cast<uint64_t>(victim));
}

TEST(WorldFailure, OneWhoGivesUpIsHeardByAll) {
  const Grid grid{.tp = 4};
  RankProcesses ranks(4, [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank));
    if (!world.ok()) return world.error().message;
    ControlLink& link = (*world)->link();
    if (rank == 3) {
      link.fail(3, "out of memory");
      link.fail(3, "and then some");
    } else if (rank == 0) {
      EXPECT_FALSE(link.receive_reply(1).ok());
    } else if (rank == 1) {
      EXPECT_FALSE(link.receive().ok());
    } else {
      float value = 1;
      (*world)->comms().world->all_reduce(Tensor(&value, DType::kF32, {1, 1}));
    }
    const auto failure = link.failure();
    if (!failure || failure->rank != 3 || failure->reason != "out of memory") return "another failure";
    return testing::Test::HasFailure() ? "a call that went through" : "";
  });
  EXPECT_EQ(ranks.complaints(), "");
}

TEST(WorldFailure, DifferentCallsAreNoticed) {
  const Grid grid{.tp = 2};
  RankProcesses ranks(2, [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank));
    if (!world.ok()) return world.error().message;
    float values[2] = {1, 2};
    Communicator& comm = *(*world)->comms().world;
    if (rank == 0)
      comm.all_reduce(Tensor(values, DType::kF32, {1, 2}));
    else
      comm.broadcast(Tensor(values, DType::kF32, {1, 2}), 0);
    if (!comm.failed()) return "nobody noticed";
    const std::string reason = (*world)->link().failure()->reason;
    return reason.find("another collective call") == std::string::npos ? reason : "";
  });
  EXPECT_EQ(ranks.complaints(), "");
}

}  // namespace
}  // namespace sparrow
