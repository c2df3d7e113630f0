// SPDX-License-Identifier: Apache-2.0
#include "comm/shared/ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

namespace sparrow {
namespace {

struct Bed {
  explicit Bed(size_t capacity)
      : capacity(capacity), memory(SharedMemory::create(Ring::bytes_for(capacity)).value()) {}
  Ring ring(int readers) { return {memory.data(), capacity, 0, readers}; }

  size_t capacity;
  SharedMemory memory;
};

Bytes message(int i) {
  std::mt19937 random(static_cast<unsigned>(i));
  Bytes bytes(random() % (i % 20 == 0 ? 5000 : 100));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

TEST(Ring, EveryReaderGetsEveryMessageWhole) {
  constexpr int kMessages = 2000, kReaders = 3;
  Bed bed(256);  // wraps all the time, and most messages are longer
  std::vector<std::thread> readers;
  for (int r = 0; r < kReaders; ++r) {
    readers.emplace_back([&, r] {
      Ring ring = bed.ring(kReaders);
      Bytes got, drained;
      for (int i = 0; i < kMessages; ++i) {
        if (r < 2) {
          ASSERT_TRUE(ring.read(r, got, {}));
        } else {
          while (!Ring::take(drained, got)) {
            ASSERT_TRUE(ring.wait(r, {}));
            ring.drain(r, drained);
          }
        }
        ASSERT_EQ(got, message(i)) << i;
      }
    });
  }
  Ring ring = bed.ring(kReaders);
  for (int i = 0; i < kMessages; ++i) ASSERT_TRUE(ring.write(message(i), {}));
  for (std::thread& reader : readers) reader.join();
}

TEST(Ring, WaitsEndWhenToldTo) {
  Bed bed(256);
  std::atomic<bool> stop = false;
  const GiveUp give_up = [&] { return stop.load(); };
  std::thread reader([&] {
    Ring ring = bed.ring(1);
    Bytes got;
    EXPECT_TRUE(ring.read(0, got, give_up));
    EXPECT_FALSE(ring.read(0, got, give_up));
  });
  Ring ring = bed.ring(2);  // the second never reads
  EXPECT_TRUE(ring.write(Bytes(100), give_up));
  std::thread stopper([&] { stop = true; });
  EXPECT_FALSE(ring.write(Bytes(1000), give_up));
  stopper.join();
  reader.join();
}

TEST(SharedMemory, OfAnotherSizeIsRefused) {
  const auto memory = SharedMemory::create(8192);
  ASSERT_TRUE(memory.ok());
  EXPECT_FALSE(SharedMemory::open(Fd(dup(memory->fd().get())), 4096).ok());
  EXPECT_NE(ftruncate(memory->fd().get(), 100), 0);  // sealed
}

}  // namespace
}  // namespace sparrow
