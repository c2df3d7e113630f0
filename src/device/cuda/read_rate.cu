// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "device/cuda/read_rate.h"
#include "device/cuda/stream.h"

namespace sparrow {
namespace {

constexpr int kThreads = 512, kCtasPerSm = 4, kUnroll = 8;

// Every thread keeps kUnroll loads of 16 bytes in flight.
__global__ void read_all(const uint4* memory, size_t count, unsigned* sink) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  unsigned sum = 0;
  size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x;
  for (; i + (kUnroll - 1) * stride < count; i += kUnroll * stride) {
    uint4 values[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) values[u] = __ldcs(memory + i + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum ^= values[u].x ^ values[u].y ^ values[u].z ^ values[u].w;
  }
  for (; i < count; i += stride) sum ^= memory[i].x;
  if (sum == 0x5eed5eedu) *sink = sum;  // keeps the loads
}

}  // namespace

double measure_read_rate(const void* memory, size_t bytes, unsigned* sink, cudaStream_t stream) {
  Arguments("measure_read_rate")
      .pointer("memory", memory)
      .pointer("sink", sink, alignof(unsigned))
      .require("bytes", bytes >= sizeof(uint4), "must hold at least one load");
  int device = 0, sms = 0;
  SPARROW_CUDA(cudaGetDevice(&device));
  SPARROW_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  Event begin(Event::Timing::kOn), end(Event::Timing::kOn);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    begin.record(stream);
    read_all<<<sms * kCtasPerSm, kThreads, 0, stream>>>(static_cast<const uint4*>(memory),
                                                        bytes / sizeof(uint4), sink);
    SPARROW_CUDA(cudaGetLastError());
    end.record(stream);
    end.wait();
    best = std::max(best, static_cast<double>(bytes) / (Event::milliseconds_between(begin, end) * 1e3));
  }
  return best;
}

}  // namespace sparrow
