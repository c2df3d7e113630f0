// SPDX-License-Identifier: Apache-2.0
// Ring: messages from one thread to several processes of a node, through shared memory. Every reader gets
// every message; the writer waits for the slowest. A stream of bytes inside, so a message may be longer than
// the ring.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "comm/control_link.h"
#include "comm/shared/shared_memory.h"

namespace sparrow {

class Ring {
 public:
  static constexpr int kMaxReaders = 128;

  static size_t bytes_for(size_t capacity);
  // `memory`: zeroed at first, bytes_for(capacity) long; a capacity is a power of two. Readers that count are
  // [first_reader, end_reader).
  Ring(std::byte* memory, size_t capacity, int first_reader, int end_reader);

  // The writer. False: gave up.
  bool write(std::span<const std::byte> message, const GiveUp& give_up);

  // Reader `reader`: the next message. False: gave up.
  bool read(int reader, Bytes& message, const GiveUp& give_up);
  // Until there is something to read. False: gave up.
  bool wait(int reader, const GiveUp& give_up);
  // What is there now, without waiting, added to `bytes`: for whoever must not let the writer wait.
  void drain(int reader, Bytes& bytes);
  // The message at the front of drained bytes, if it is all there.
  static bool take(Bytes& bytes, Bytes& message);

 private:
  struct Head {
    alignas(64) SharedWord written;  // bytes, modulo 2^32
    alignas(64) SharedWord freed;    // changes when a reader has made room for a writer that waits
    std::atomic<uint32_t> writer_waits;
    struct alignas(64) Reader {
      std::atomic<uint32_t> read;  // bytes, modulo 2^32
    };
    std::array<Reader, kMaxReaders> readers;
  };

  uint32_t room() const;
  uint32_t ready(int reader) const;
  bool put(std::span<const std::byte> bytes, const GiveUp& give_up);
  bool get(int reader, std::span<std::byte> bytes, const GiveUp& give_up);
  void advance(int reader, uint32_t bytes);
  void copy_in(uint32_t at, std::span<const std::byte> bytes);
  void copy_out(uint32_t at, std::span<std::byte> bytes) const;

  Head& head_;
  std::byte* data_;
  uint32_t capacity_;
  int first_reader_, end_reader_;
  uint32_t position_ = 0;  // the writer's: what it has put, published or not
  Patience patience_{50'000};
};

}  // namespace sparrow
