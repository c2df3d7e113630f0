// SPDX-License-Identifier: Apache-2.0
// NCCL between processes that found each other as a World: the id comes from rank 0, whoever has no such
// library is named on all ranks, and what NCCL reports on one rank ends them all.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "comm/nccl/nccl_ranks.h"
#include "comm/world.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

constexpr Grid kGrid{.tp = 2, .dp = 2};
constexpr int kNodeRanks = 2;

std::string path_of(const std::string& name) {
  return std::string(SPARROW_FAKE_NCCL_DIR) + "/lib" + name + ".so";
}

// One rank, with that library: "" or what is wrong.
using Use = std::function<std::string(World&, NcclRanks&, void* library)>;
std::string run_rank(int rank, int port, const std::string& path, const SharedCounter& done, const Use& use) {
  auto world = World::join(test_world(kGrid, rank, kNodeRanks, port));
  if (!world.ok()) return world.error().message;
  Grid grid = kGrid;
  grid.rank = rank;
  auto ranks =
      NcclRanks::join({.grid = grid,
                       .needs = {.several_nodes = true},
                       .library = path.c_str(),
                       .interval = std::chrono::milliseconds(1),
                       .lost = [&](const Error& error) { (*world)->link().fail(rank, error.message); }},
                      [&](std::span<const std::byte> mine) { return (*world)->exchange(mine); });
  const std::string said =
      ranks.ok() ? use(**world, **ranks, dlopen(path.c_str(), RTLD_NOW)) : ranks.error().message;
  // Nobody leaves before all have heard.
  ++*done;
  done.wait_for(kGrid.world());
  return said;
}

TEST(NcclWorld, TheIdComesFromRankZeroAndAReportEndsAll) {
  constexpr int kVictim = 3;
  const int port = free_port();
  const SharedCounter joined, done;
  RankProcesses ranks(kGrid.world(), [&](int rank) {
    return run_rank(
        rank, port, path_of("fake_nccl_new"), done,
        [&](World& world, NcclRanks& nccl, void* library) -> std::string {
          const auto calls = reinterpret_cast<const char* (*)()>(dlsym(library, "fake_nccl_calls"));
          const std::string seen = calls();
          if (nccl.version() != "2.30.4") return nccl.version();
          // Only rank 0 asked for an id, which is of sevens.
          if (seen.find(strf("init {}/4 id 7", rank)) == std::string::npos) return seen;
          ++*joined;
          joined.wait_for(kGrid.world());
          auto* const error = reinterpret_cast<std::atomic<int>*>(dlsym(library, "fake_nccl_error"));
          if (rank == kVictim) *error = 6;
          while (!world.link().failure()) std::this_thread::yield();
          const auto failure = *world.link().failure();
          const bool right =
              failure.rank == kVictim && failure.reason.find("remote process exited") != std::string::npos;
          return right ? "" : strf("rank {}: {}", failure.rank, failure.reason);
        });
  });
  EXPECT_EQ(ranks.complaints(), "");
}

TEST(NcclWorld, ALibraryThatIsTooOldIsNamedOnAllRanks) {
  const int port = free_port();
  const SharedCounter done;
  RankProcesses ranks(kGrid.world(), [&](int rank) {
    const std::string path = path_of(rank == 2 ? "fake_nccl" : "fake_nccl_new");
    return run_rank(rank, port, path, done, [](World&, NcclRanks&, void*) { return std::string("joined"); });
  });
  for (int r = 0; r < kGrid.world(); ++r)
    EXPECT_EQ(ranks.wait(r), "rank 2: " + path_of("fake_nccl") +
                                 " is NCCL 2.28.9: ranks on several nodes need 2.30.4 or newer (libnccl2, or "
                                 "nvidia-nccl-cu13 of PyPI)");
}

}  // namespace
}  // namespace sparrow
