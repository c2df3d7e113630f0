// SPDX-License-Identifier: Apache-2.0
#include "model/load/file_walk.h"

#include <utility>

namespace sparrow {

int FileWalk::file_of(const std::byte* data) const {
  for (size_t f = 0; f < order_.files.size(); ++f) {
    const std::span<const std::byte> bytes = order_.files[f].mapping().bytes();
    if (data >= bytes.data() && data < bytes.data() + bytes.size()) return static_cast<int>(f);
  }
  return kNoFile;
}

void FileWalk::expect(int file) {
  if (file != kNoFile) ++chunks_left_[static_cast<size_t>(file)];
}

void FileWalk::start() {
  if (!order_.make_pacer) return;
  std::vector<char> reads;
  for (const std::atomic<int>& chunks : chunks_left_) reads.push_back(chunks > 0);
  pacer_ = order_.make_pacer(std::move(reads));
}

Status FileWalk::begin(int file) {
  if (pacer_ == nullptr || file <= last_begun_.load(std::memory_order_acquire)) return Ok{};
  // Threads that are still in a file before this one do not come here.
  const std::lock_guard lock(mutex_);
  if (file <= last_begun_.load(std::memory_order_relaxed)) return Ok{};
  if (!pacer_->begin(file))
    return Error{Errc::kStopped, "another rank of this node is gone: loading has ended"};
  last_begun_.store(file, std::memory_order_release);
  return Ok{};
}

void FileWalk::end(int file) {
  if (pacer_ != nullptr && file != kNoFile && --chunks_left_[static_cast<size_t>(file)] == 0)
    pacer_->end(file);
}

}  // namespace sparrow
