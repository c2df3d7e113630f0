// SPDX-License-Identifier: Apache-2.0
// Memory, streams, events and graphs on a GPU.
#include "device/cuda/device_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<DeviceBuffer> &&
              std::is_nothrow_move_constructible_v<DeviceBuffer>);
static_assert(!std::is_copy_constructible_v<PinnedBuffer> && !std::is_copy_constructible_v<Stream>);
static_assert(!std::is_copy_constructible_v<Event> && !std::is_copy_constructible_v<Graph>);

TEST(DeviceInfo, NamesTheGpuAndItsMemory) {
  const auto info = use_device(0);
  ASSERT_TRUE(info.ok()) << info.error().message;
  EXPECT_FALSE(info->name.empty());
  EXPECT_EQ(info->compute_major, 9);
  EXPECT_GT(info->num_sms, 0);
  EXPECT_GT(info->total_bytes, size_t{16} << 30);
  EXPECT_LE(info->free_bytes, info->total_bytes);
}

TEST(DeviceInfo, AGpuThatIsNotThereIsAnError) {
  const auto info = use_device(99);
  ASSERT_FALSE(info.ok());
  EXPECT_THAT(info.error().message, HasSubstr("GPU 99 does not exist"));
  EXPECT_FALSE(use_device(-1).ok());
}

TEST(DeviceBuffer, TooLargeAnAllocationIsAnErrorThatNamesTheBytesWantedAndFree) {
  constexpr size_t kTooMuch = size_t{1} << 50;
  const auto buffer = DeviceBuffer::allocate(kTooMuch);
  ASSERT_FALSE(buffer.ok());
  EXPECT_THAT(buffer.error().message, HasSubstr("no 1125899906842624 bytes of GPU memory"));
  EXPECT_THAT(buffer.error().message, HasSubstr("bytes are free"));
  // The refusal does not stay behind as the last error.
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Twice the device's memory in all: other processes may use it too, so what is free is no measure.
TEST(DeviceBuffer, GivesItsMemoryBack) {
  const size_t bytes = use_device(0).value().total_bytes / 4;
  for (int i = 0; i < 8; ++i) {
    Result<DeviceBuffer> first = DeviceBuffer::allocate(bytes);
    ASSERT_TRUE(first.ok()) << "the " << i << "th time: " << first.error().message;
    EXPECT_EQ(first->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % 256, 0u);
    const DeviceBuffer second = std::move(first).value();
    EXPECT_EQ(first->bytes(), 0u);
    EXPECT_EQ(second.bytes(), bytes);
  }
}

TEST(DeviceBuffer, OfNoBytesIsEmpty) {
  const DeviceBuffer buffer = DeviceBuffer::allocate(0).value();
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0u);
}

TEST(Graph, RunsWhatWasRecordedEachTimeItIsLaunchedAndNotBefore) {
  constexpr size_t kBytes = 1 << 20;
  Stream stream;
  const PinnedBuffer source = PinnedBuffer::allocate(kBytes).value();
  const PinnedBuffer target = PinnedBuffer::allocate(kBytes).value();
  const DeviceBuffer device = DeviceBuffer::allocate(kBytes).value();
  std::memset(target.data(), 0, kBytes);
  const Graph graph = Graph::capture(stream, [&] {
    SPARROW_CUDA(cudaMemcpyAsync(device.data(), source.data(), kBytes, cudaMemcpyHostToDevice, stream.get()));
    SPARROW_CUDA(cudaMemcpyAsync(target.data(), device.data(), kBytes, cudaMemcpyDeviceToHost, stream.get()));
  });
  stream.synchronize();
  EXPECT_EQ(target.as<uint8_t>()[kBytes - 1], 0);
  for (const int value : {7, 9}) {
    std::memset(source.data(), value, kBytes);
    graph.launch(stream.get());
    stream.synchronize();
    EXPECT_EQ(std::memcmp(source.data(), target.data(), kBytes), 0);
  }
  EXPECT_FALSE(graph.empty());
  EXPECT_TRUE(Graph().empty());
}

TEST(Event, MeasuresTimeAndOrdersStreams) {
  constexpr size_t kBytes = size_t{256} << 20;
  Stream first, second;
  const DeviceBuffer device = DeviceBuffer::allocate(kBytes).value();
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn), done;
  EXPECT_TRUE(done.is_done());  // never recorded
  begin.record(first.get());
  for (int i = 0; i < 20; ++i) SPARROW_CUDA(cudaMemsetAsync(device.data(), i, kBytes, first.get()));
  done.record(first.get());
  second.wait_for(done);
  end.record(second.get());
  end.wait();
  EXPECT_TRUE(done.is_done());
  // 5 GB cannot be written in less than a millisecond.
  EXPECT_GT(Event::milliseconds_between(begin, end), 1.0f);
}

TEST(CudaCheckDeathTest, NamesTheCallAndTheReason) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(SPARROW_CUDA(cudaSetDevice(99)),
               "device_test.cc.*cudaSetDevice\\(99\\).*invalid device ordinal");
}

}  // namespace
}  // namespace sparrow
