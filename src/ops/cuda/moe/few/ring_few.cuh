// SPDX-License-Identifier: Apache-2.0
// What the experts of few rows share between their two products: a ring of shared memory for pieces of
// unequal size (weights, and as many rows as go with them), and a barrier over all CTAs.
#pragma once

#include <cstdint>

#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

template <int kSlots_>
struct PieceRing {
  static constexpr int kSlots = kSlots_;  // pieces in the ring at most
  uint64_t full[kSlots], empty[kSlots];
  int32_t offset[kSlots];  // of each piece; written before it is announced
};

// The producer warp's view. Pieces are used in the order in which they were placed, so that the oldest is
// always the first to be free again.
template <typename Ring>
struct PieceRingWriter {
  Ring& ring;
  int bytes;
  int placed = 0, released = 0;  // pieces so far
  int newest = 0, end = 0;       // where the newest piece begins and ends

  // Where a piece of this size can lie now, or -1.
  __device__ __forceinline__ int fit(int size) const {
    if (placed == released) return 0;
    if (placed - released == Ring::kSlots) return -1;
    const int oldest = ring.offset[released % Ring::kSlots];
    if (newest < oldest) return end + size <= oldest ? end : -1;
    if (end + size <= bytes) return end;
    return size <= oldest ? 0 : -1;
  }
  __device__ __forceinline__ void release() {
    hopper::mbarrier_wait(&ring.empty[released % Ring::kSlots], released / Ring::kSlots % 2);
    ++released;
  }
  // The same, when pieces before it are free again.
  __device__ __forceinline__ int room(int size) {
    int offset = fit(size);
    for (; offset < 0; offset = fit(size)) release();
    return offset;
  }
  // Takes the place that fit() has named and announces its bytes. Returns its slot.
  __device__ __forceinline__ int place(int offset, int size, int announced) {
    const int slot = placed % Ring::kSlots;
    if (threadIdx.x % 32 == 0) {
      ring.offset[slot] = offset;
      hopper::mbarrier_arrive_expect(&ring.full[slot], announced);
    }
    __syncwarp();
    newest = offset, end = offset + size, ++placed;
    return slot;
  }
};

// A consumer warp's view.
template <typename Ring>
struct PieceRingReader {
  Ring& ring;
  int used = 0;

  // Waits for the next piece and returns where it lies.
  __device__ __forceinline__ int wait() const {
    const int slot = used % Ring::kSlots;
    hopper::mbarrier_wait(&ring.full[slot], used / Ring::kSlots % 2);
    return ring.offset[slot];
  }
  __device__ __forceinline__ void done() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) hopper::mbarrier_arrive(&ring.empty[used % Ring::kSlots]);
    ++used;
  }
};

using FewRing = PieceRing<8>;
using FewRingWriter = PieceRingWriter<FewRing>;
using FewRingReader = PieceRingReader<FewRing>;

// A barrier over the grid: a word whose highest bit changes when the last CTA has arrived and whose other
// bits are then zero again, so that the next launch may have another grid. All CTAs must be on the device at
// once.
struct GridBarrier {
  uint32_t* word;

  // Which state the word is in. To be read before this CTA arrives.
  __device__ __forceinline__ uint32_t phase() const { return hopper::load_relaxed(word) & 0x80000000u; }
  // One thread of a CTA; what it wrote, or saw written before a barrier of its CTA, is visible to all who
  // have waited.
  __device__ __forceinline__ void arrive() const {
    const uint32_t step = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
    hopper::add_release(word, step);
  }
  __device__ __forceinline__ void wait(uint32_t phase) const {
    while ((hopper::load_acquire(word) & 0x80000000u) == phase) continue;
  }
  // Until half of the CTAs have arrived; makes nothing visible.
  __device__ __forceinline__ void wait_for_half(uint32_t phase) const {
    const auto arrived = [&] {
      const uint32_t count = hopper::load_relaxed(word) - phase;
      return count < gridDim.x ? count : count - 0x80000000u + gridDim.x;
    };
    while (arrived() < gridDim.x / 2) continue;
  }
};

}  // namespace sparrow::ops::cuda
