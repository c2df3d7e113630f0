// SPDX-License-Identifier: Apache-2.0
// The ranks of a node load together, as processes: what they read from a disk is counted over all of them,
// with a page cache that is smaller than what they load.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <random>
#include <thread>

#include "base/strf.h"
#include "comm/world.h"
#include "support/comm/rank_processes.h"

namespace sparrow {
namespace {

constexpr int kFiles = 24, kPages = 8;  // of a file

// Of one machine: least recently used pages leave. Lies in memory that its processes share.
struct PageCache {
  std::atomic<int> locked{0}, reads{0};
  int room = 0;
  int64_t clock = 0;
  int64_t used[kFiles * kPages] = {};  // when; 0: it is not there

  void touch(int page) {
    while (locked.exchange(1) != 0) std::this_thread::yield();
    if (used[page] == 0) {
      ++reads;
      const auto there = std::count_if(std::begin(used), std::end(used), [](int64_t at) { return at > 0; });
      if (there == room)
        *std::min_element(std::begin(used), std::end(used), [](int64_t a, int64_t b) {
          return (a == 0 ? INT64_MAX : a) < (b == 0 ? INT64_MAX : b);
        }) = 0;
    }
    used[page] = ++clock;
    locked = 0;
  }
};

class Machines {
 public:
  Machines(int count, int cache_files)
      : count_(count),
        caches_(static_cast<PageCache*>(
            mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    for (int i = 0; i < count; ++i) (new (caches_ + i) PageCache)->room = cache_files * kPages;
  }
  ~Machines() { munmap(caches_, bytes()); }
  Machines(const Machines&) = delete;
  Machines& operator=(const Machines&) = delete;

  PageCache& operator[](int i) const { return caches_[i]; }

 private:
  size_t bytes() const { return sizeof(PageCache) * static_cast<size_t>(count_); }
  const int count_;
  PageCache* const caches_;
};

// Every rank reads every page, as with columns, at a pace of its own.
std::string load(World& world, PageCache& cache) {
  const auto pacer = world.load_pacer(std::vector<char>(kFiles, 1));
  if (!pacer) return "no pacer";
  std::mt19937 random(static_cast<unsigned>(world.grid().rank));
  for (int file = 0; file < kFiles; ++file) {
    if (!pacer->begin(file)) return "gave up";
    for (int page = 0; page < kPages; ++page) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
      cache.touch(file * kPages + page);
    }
    pacer->end(file);
  }
  return world.exchange({}).ok() ? "" : "a rank is gone";
}

// What each machine has read, in files.
std::vector<int> files_read(int local_world, int cache_files) {
  const Grid grid{.tp = 4};
  const int nodes = grid.world() / local_world, port = nodes > 1 ? free_port() : 0;
  const Machines machines(nodes, cache_files);
  RankProcesses ranks(grid.world(), [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank, local_world, port));
    if (!world.ok()) return world.error().message;
    return load(**world, machines[rank / local_world]);
  });
  EXPECT_EQ(ranks.complaints(), "");
  std::vector<int> read;
  for (int node = 0; node < nodes; ++node) read.push_back(machines[node].reads / kPages);
  return read;
}

TEST(WorldLoad, ANodeReadsEachFileOnceWhereMemoryHoldsFiveOfThem) {
  EXPECT_EQ(files_read(4, LoadPacer::kFilesInMemory), std::vector{kFiles});
}

TEST(WorldLoad, EachNodeReadsThemForItself) {
  EXPECT_EQ(files_read(2, LoadPacer::kFilesInMemory), (std::vector{kFiles, kFiles}));
}

TEST(WorldLoad, ARankThatIsAloneOnItsNodeHasNobodyToWaitFor) {
  const Grid grid{.tp = 2};
  const int port = free_port();
  RankProcesses ranks(2, [&](int rank) -> std::string {
    auto world = World::join(test_world(grid, rank, 1, port));
    if (!world.ok()) return world.error().message;
    return (*world)->load_pacer({1, 1}) ? "a pacer" : "";
  });
  EXPECT_EQ(ranks.complaints(), "");
}

TEST(WorldLoad, WhoIsLeftAloneWhileLoadingGivesUp) {
  RankProcesses ranks(2, [&](int rank) -> std::string {
    auto world = World::join(test_world({.tp = 2}, rank));
    if (!world.ok()) return world.error().message;
    if (rank == 1) _exit(0);  // without a goodbye
    const auto pacer = (*world)->load_pacer({1});
    return pacer->begin(0) ? "began" : "gave up";
  });
  EXPECT_EQ(ranks.wait(0), "gave up");
}

}  // namespace
}  // namespace sparrow
