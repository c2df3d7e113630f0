// SPDX-License-Identifier: Apache-2.0
// Ranks of a node that load together, against a page cache that is smaller than what they load.
#include "comm/load_pacer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <random>
#include <thread>

namespace sparrow {
namespace {

constexpr int kPages = 8;  // of a file

// Least recently used pages leave. Counts how often the disk is read.
class PageCache {
 public:
  explicit PageCache(size_t pages) : pages_(pages) {}

  void touch(int page) {
    const std::lock_guard lock(mutex_);
    const auto it = std::find(recent_.begin(), recent_.end(), page);
    if (it != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, it);
      return;
    }
    ++reads_;
    recent_.push_front(page);
    if (recent_.size() > pages_) recent_.pop_back();
  }
  int reads() const { return reads_; }

 private:
  const size_t pages_;
  std::mutex mutex_;
  std::list<int> recent_;
  int reads_ = 0;
};

using Reads = std::vector<std::vector<char>>;  // [rank][file]

// Every rank a thread, each at a pace of its own.
int disk_reads(const Reads& reads, size_t cache_files, unsigned seed) {
  PageCache cache(cache_files * kPages);
  std::vector<std::byte> memory(LoadPacer::bytes_for(static_cast<int>(reads[0].size())));
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < reads.size(); ++rank)
    ranks.emplace_back([&, rank] {
      LoadPacer pacer(memory.data(), static_cast<int>(reads.size()), reads[rank], {});
      std::mt19937 random(seed + static_cast<unsigned>(rank));
      for (int file = 0; file < static_cast<int>(reads[rank].size()); ++file) {
        if (!reads[rank][static_cast<size_t>(file)]) continue;
        EXPECT_TRUE(pacer.begin(file));
        for (int page = 0; page < kPages; ++page) {
          if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
          cache.touch(file * kPages + page);
        }
        pacer.end(file);
      }
    });
  for (std::thread& rank : ranks) rank.join();
  return cache.reads();
}

TEST(LoadPacer, EveryPageIsReadOnceWhereMemoryHoldsFiveFilesOfMany) {
  constexpr int kFiles = 24;
  for (unsigned seed = 0; seed < 5; ++seed)
    EXPECT_EQ(disk_reads(Reads(8, std::vector<char>(kFiles, 1)), LoadPacer::kFilesInMemory, seed),
              kFiles * kPages);
}

// Whole experts: every second file is shared by all, the others belong to one rank each.
TEST(LoadPacer, FilesOfOneRankWaitForNobody) {
  constexpr int kFiles = 32, kRanks = 4;
  Reads reads(kRanks, std::vector<char>(kFiles, 0));
  for (size_t file = 0; file < kFiles; ++file)
    for (size_t rank = 0; rank < kRanks; ++rank)
      reads[rank][file] = file % 2 == 0 || file / 2 % kRanks == rank;
  for (unsigned seed = 0; seed < 5; ++seed)
    EXPECT_EQ(disk_reads(reads, LoadPacer::kMaxOpen + 2 * kRanks, seed), kFiles * kPages);
  // With nothing shared a rank gets through alone, whatever the others do.
  const std::vector<char> mine = {1, 0, 1, 0}, theirs = {0, 1, 0, 1};
  std::vector<std::byte> memory(LoadPacer::bytes_for(4));
  LoadPacer first(memory.data(), 2, mine, {}), second(memory.data(), 2, theirs, {});
  EXPECT_TRUE(first.begin(0) && first.begin(2));
  EXPECT_TRUE(second.begin(1) && second.begin(3));
}

// Any set of files for each rank: all get through.
TEST(LoadPacer, NobodyWaitsForEver) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    Reads reads(5, std::vector<char>(20));
    for (auto& rank : reads)
      for (char& file : rank) file = random() % 2 == 0;
    EXPECT_GT(disk_reads(reads, 100, seed), 0);
  }
}

TEST(LoadPacer, ARankIsHeldTwoFilesAhead) {
  constexpr int kFiles = 8;
  std::vector<std::byte> memory(LoadPacer::bytes_for(kFiles));
  bool gave_up = false;
  LoadPacer fast(memory.data(), 2, std::vector<char>(kFiles, 1), [&] { return gave_up; });
  LoadPacer slow(memory.data(), 2, std::vector<char>(kFiles, 1), {});
  for (int file = 0; file < LoadPacer::kMaxOpen; ++file) {
    EXPECT_TRUE(fast.begin(file));
    fast.end(file);
  }
  gave_up = true;  // it would wait for ever, and is told to stop
  EXPECT_FALSE(fast.begin(3));
  EXPECT_TRUE(slow.begin(0));
  EXPECT_FALSE(fast.begin(3));
  slow.end(0);
  EXPECT_TRUE(fast.begin(3));
  EXPECT_FALSE(fast.begin(4));
}

TEST(LoadPacer, WhoWaitsForARankThatNeverComesGivesUp) {
  std::vector<std::byte> memory(LoadPacer::bytes_for(1));
  int asked = 0;
  LoadPacer alone(memory.data(), 2, {1}, [&] { return ++asked > 3; });
  EXPECT_FALSE(alone.begin(0));
}

// The same between processes, in memory that they share.
TEST(LoadPacer, WorksBetweenProcesses) {
  constexpr int kFiles = 12, kRanks = 3;
  const size_t bytes = LoadPacer::bytes_for(kFiles) + sizeof(std::atomic<int>) * kRanks;
  void* const shared = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(shared);
  auto* const at = reinterpret_cast<std::atomic<int>*>(memory + LoadPacer::bytes_for(kFiles));
  std::vector<pid_t> children;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      LoadPacer pacer(memory, kRanks, std::vector<char>(kFiles, 1), {});
      bool ok = true;
      for (int file = 0; file < kFiles && ok; ++file) {
        ok = pacer.begin(file);
        at[rank] = file;
        // Who has not begun this file yet has ended all but the last few before it.
        for (int other = 0; other < kRanks; ++other) ok = ok && at[other] >= file - LoadPacer::kMaxOpen;
        pacer.end(file);
      }
      ::_exit(ok ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  ::munmap(shared, bytes);
}

}  // namespace
}  // namespace sparrow
