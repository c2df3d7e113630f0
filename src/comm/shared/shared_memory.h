// SPDX-License-Identifier: Apache-2.0
// Memory that the processes of a node share, and how they wait in it. It has no name: it is handed from
// process to process over a socket, and is gone with the last of them, however that one ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "comm/net/socket.h"

namespace sparrow {

class SharedMemory {
 public:
  // Zeroed. Costs what is touched.
  static Result<SharedMemory> create(size_t bytes);
  // Of another process; refused where it has another size.
  static Result<SharedMemory> open(Fd memory, size_t bytes);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  std::byte* data() const { return data_; }
  const Fd& fd() const { return fd_; }

 private:
  Fd fd_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A word in shared memory that others change and somebody waits for. All zero is a good start.
struct SharedWord {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  // Publishes a new value, and wakes who sleeps.
  void set(uint32_t next);
  void add(uint32_t more);

 private:
  void wake();
};

// How one thread waits: spins for a moment where that has helped before, then sleeps.
class Patience {
 public:
  explicit Patience(int64_t longest_ns) : longest_ns_(longest_ns), ns_(longest_ns) {}

  // Until done() is true, looking whenever the word changes; false: gave up first.
  template <typename Done>
  bool wait(SharedWord& word, Done&& done, const GiveUp& give_up) {
    if (done()) return true;
    const int64_t start = now_ns();
    while (now_ns() - start < ns_) {
      for (int i = 0; i < 32; ++i) pause();
      if (done()) return learn(true);
    }
    for (learn(false);;) {
      const uint32_t seen = word.value.load(std::memory_order_seq_cst);
      if (done()) return true;
      if (give_up && give_up()) return false;
      sleep(word, seen);
    }
  }

 private:
  bool learn(bool in_time);
  static int64_t now_ns();
  static void pause();
  // At most a tenth of a second, while the word has that value.
  static void sleep(SharedWord& word, uint32_t seen);

  int64_t longest_ns_, ns_;
};

}  // namespace sparrow
