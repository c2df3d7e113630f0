// SPDX-License-Identifier: Apache-2.0
#include "device/scratch.h"

#include <algorithm>
#include <new>

#include "base/math.h"

namespace sparrow {
namespace {
constexpr size_t kAlign = 64, kMinChunk = size_t{1} << 20;
}

void Scratch::FreeAligned::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kAlign});
}

size_t Scratch::capacity_bytes() const {
  size_t total = 0;
  for (const Chunk& chunk : chunks_) total += chunk.bytes;
  return total;
}

void Scratch::add_chunk(size_t bytes) {
  const size_t size = std::max(bytes, kMinChunk);
  auto* memory = static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlign}));
  chunks_.push_back({std::unique_ptr<std::byte, FreeAligned>(memory), size});
}

void* Scratch::take(size_t bytes) {
  bytes = round_up(bytes, kAlign);
  while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes) {
    ++chunk_;
    used_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    add_chunk(bytes);
    used_ = 0;
  }
  void* result = chunks_[chunk_].memory.get() + used_;
  used_ += bytes;
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  return result;
}

// Nothing is taken. One piece has no ends that are too small for the next taker.
void Scratch::merge() {
  chunks_.clear();
  chunk_ = used_ = 0;
  add_chunk(peak_);
}

}  // namespace sparrow
