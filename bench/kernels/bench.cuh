// SPDX-License-Identifier: Apache-2.0
// What the kernel benchmarks share: the card's measured ceilings, random device data, and the median of
// CUDA-graph replays. Each program includes this once.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace bench {

inline constexpr double kReadBytesPerUs = 4459e3, kFlopsPerUs = 809e6;  // measured on an H200
inline constexpr int64_t kL2Bytes = int64_t{60} << 20;
inline constexpr int64_t kRotateBytes = 4 * kL2Bytes;
inline constexpr int kReplays = 21;
inline constexpr double kWarmMs = 60;
inline constexpr int kMinLaunches = 8;  // of a replay that is shorter than kShortMs
inline constexpr double kShortMs = 4;

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) bench::check((call), #call)

struct Options {
  bool json = false;
  bool once = false;  // launch once, untimed: for profilers
  std::string only;   // run the cases whose name holds this
};

inline Options parse_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) options.json = true;
    if (std::strcmp(argv[i], "--once") == 0) options.once = true;
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) options.only = argv[++i];
  }
  return options;
}

// bf16 or e4m3 numbers of both signs, sizes from 1/8 to just under 2.
static __global__ void fill_random(uint32_t* data, int64_t words, uint32_t seed, bool fp8) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    data[i] = fp8 ? (x & 0x9f9f9f9fu) | 0x20202020u : (x & 0x81ff81ffu) | 0x3e003e00u;
  }
}

// The clock the SMs run at just now, in MHz: a card that has been idle takes milliseconds to reach full
// speed.
static __global__ void measure_clock(float* mhz) {
  uint64_t begin, end;
  const int64_t cycles = clock64();
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(end));
  while (end - begin < 200000);
  *mhz = static_cast<float>(clock64() - cycles) * 1e3f / static_cast<float>(end - begin);
}

template <typename T>
T* upload(const std::vector<T>& host) {
  T* data = nullptr;
  CHECK(cudaMalloc(&data, host.size() * sizeof(T)));
  CHECK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

struct Timing {
  double us = 0;  // median, of one launch
  float mhz = 0;
  double spread = 0;  // between the quartiles, over the median
};

// A replay runs launch(0) to launch(count - 1); inputs together larger than the L2 make each start cold.
// Short ones are repeated, so that the start of a graph does not count as theirs; the peers were measured so
// too.
template <typename Launch>
Timing time_launches(cudaStream_t stream, int count, bool once, const Launch& launch) {
  for (int i = 0; i < count; ++i) CHECK(launch(i));
  CHECK(cudaStreamSynchronize(stream));
  if (once) return {};
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < count; ++i) CHECK(launch(i));
  CHECK(cudaEventRecord(end, stream));
  CHECK(cudaStreamSynchronize(stream));
  float first_ms = 0;
  CHECK(cudaEventElapsedTime(&first_ms, begin, end));
  const int launches =
      first_ms < kShortMs ? (std::max(count, kMinLaunches) + count - 1) / count * count : count;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < launches; ++i) CHECK(launch(i % count));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<double> us;
  double warm_ms = 0;  // until the clocks have settled
  while (us.size() < kReplays) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaStreamSynchronize(stream));
    float ms = 0;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (warm_ms < kWarmMs)
      warm_ms += ms;
    else
      us.push_back(ms * 1e3 / launches);
  }
  float* mhz = nullptr;
  CHECK(cudaMallocHost(&mhz, sizeof(float)));
  measure_clock<<<1, 1, 0, stream>>>(mhz);
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  std::sort(us.begin(), us.end());
  const double median = us[us.size() / 2];
  const Timing timing = {median, *mhz, (us[us.size() * 3 / 4] - us[us.size() / 4]) / median};
  CHECK(cudaFreeHost(mhz));
  return timing;
}

inline void print_line(const Options& options, const std::string& name, const Timing& timing, double floor_us,
                       double peer_us) {
  if (options.json)
    std::printf(
        "{\"case\":\"%s\",\"us\":%.2f,\"spread\":%.4f,\"floor_us\":%.2f,\"peer_us\":%.1f,\"mhz\":%.0f}\n",
        name.c_str(), timing.us, timing.spread, floor_us, peer_us, timing.mhz);
  else
    std::printf("%-42s %9.2f us +-%4.1f%%  floor %8.2f (%4.0f%%)  peer %7.1f (%.2fx)  %.0f MHz\n",
                name.c_str(), timing.us, 50 * timing.spread, floor_us, 100 * floor_us / timing.us, peer_us,
                peer_us / timing.us, timing.mhz);
  std::fflush(stdout);
}

}  // namespace bench
