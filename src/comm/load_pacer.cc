// SPDX-License-Identifier: Apache-2.0
#include "comm/load_pacer.h"

#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"

namespace sparrow {

struct LoadPacer::Head {
  std::atomic<int32_t> joined;  // ranks that have said which files they read
  std::atomic<int32_t> locked;
};

// Ranks. Changed under the lock, but for `readers`, which is complete before anybody begins.
struct LoadPacer::File {
  std::atomic<int32_t> readers, begun, ended;

  bool is_open() const { return readers > 1 && begun > 0 && ended < readers; }
};

size_t LoadPacer::bytes_for(int num_files) {
  return sizeof(Head) + static_cast<size_t>(num_files) * sizeof(File);
}

LoadPacer::LoadPacer(std::byte* memory, int local_world, std::vector<char> reads,
                     std::function<bool()> give_up)
    : head_(*reinterpret_cast<Head*>(memory)),
      files_(reinterpret_cast<File*>(memory + sizeof(Head))),
      local_world_(local_world),
      reads_(std::move(reads)),
      give_up_(std::move(give_up)) {
  static_assert(std::atomic<int32_t>::is_always_lock_free);
  for (size_t f = 0; f < reads_.size(); ++f)
    if (reads_[f]) ++files_[f].readers;
  ++head_.joined;
}

// Files take seconds: looking every millisecond is soon enough.
template <typename Done>
bool LoadPacer::wait(Done&& done) {
  while (!done()) {
    if (give_up_ && give_up_()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool LoadPacer::lock() {
  return wait([&] { return head_.locked.exchange(1, std::memory_order_acquire) == 0; });
}

void LoadPacer::unlock() {
  head_.locked.store(0, std::memory_order_release);
}

bool LoadPacer::may_begin(int file) const {
  if (files_[file].readers == 1 || files_[file].begun > 0) return true;
  int open = 0, first_open = static_cast<int>(reads_.size());
  for (int f = static_cast<int>(reads_.size()); f-- > 0;)
    if (files_[f].is_open()) ++open, first_open = f;
  return open < kMaxOpen || file < first_open;
}

bool LoadPacer::begin(int file) {
  SPARROW_CHECK(file >= 0 && static_cast<size_t>(file) < reads_.size() && reads_[static_cast<size_t>(file)]);
  if (!wait([&] { return head_.joined == local_world_; })) return false;
  return wait([&] {
    if (!lock()) return false;
    const bool may = may_begin(file);
    if (may) ++files_[file].begun;
    unlock();
    return may;
  });
}

void LoadPacer::end(int file) {
  // Without the lock: somebody who sees the file open a moment too long looks again.
  ++files_[file].ended;
}

}  // namespace sparrow
