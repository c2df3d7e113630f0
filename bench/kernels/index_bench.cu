// SPDX-License-Identifier: Apache-2.0
// Times the Hopper index kernels on a fixed list of cases: median of CUDA-graph replays, keys rotated over
// more than twice the L2. Usage: index_bench [--json] [--ordered] [--only TEXT]; --ordered gives pages in
// memory order instead of a random one. The peer column is the better of the two
// Triton implementations that serving stacks run on Hopper, measured on an H200 with the same method.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "msa/sm90/index/index.h"
#include "sm90/tensor_map.h"

namespace {

using msa::kBlock;
using msa::kHeadDim;

constexpr double kReadBytesPerSecond = 4459e9, kFlopsPerSecond = 809e12;  // measured ceilings of the H200
constexpr int64_t kL2Bytes = 60 << 20;
constexpr int kReplays = 25;

#define CUDA_OK(call)                                                                               \
  do {                                                                                              \
    const cudaError_t error = call;                                                                 \
    if (error != cudaSuccess) {                                                                     \
      std::fprintf(stderr, "%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
      std::exit(1);                                                                                 \
    }                                                                                               \
  } while (0)

struct Case {
  const char* name;
  int batch, queries, context, heads;
  hopper::Element key_type;
  double peer_us, goal_us;  // 0: none
};

constexpr hopper::Element kBF16 = hopper::Element::kBF16, kE4M3 = hopper::Element::kE4M3;
constexpr Case kCases[] = {
    {"prefill/TP4/S8192/ctx8192", 1, 8192, 8192, 1, kBF16, 74.6, 25},
    {"prefill/TP1/S8192/ctx8192", 1, 8192, 8192, 4, kBF16, 160.1, 75},
    {"prefill/TP4/S32768/ctx32768", 1, 32768, 32768, 1, kBF16, 540.5, 290},
    {"prefill/TP1/S32768/ctx32768", 1, 32768, 32768, 4, kBF16, 1750, 1100},
    {"prefill/TP4/S8192/ctx131072", 1, 8192, 131072, 1, kBF16, 1670, 530},
    {"prefill/TP4/S8192/ctx1048576", 1, 8192, 1048576, 1, kBF16, 13350, 4400},
    {"prefill/TP1/S8192/ctx1048576", 1, 8192, 1048576, 4, kBF16, 30020, 17000},
    {"prefill/TP8/S2048/ctx1048576", 1, 2048, 1048576, 1, kBF16, 11570, 1100},
    {"extend/TP8/S128/ctx131072", 1, 128, 131072, 1, kBF16, 1390, 20},
    {"extend/TP8/S128/ctx1048576", 1, 128, 1048576, 1, kBF16, 11120, 100},
    {"extend/TP8/S16/ctx131072", 1, 16, 131072, 1, kBF16, 1310, 14},
    {"extend/TP8/S16/ctx1048576", 1, 16, 1048576, 1, kBF16, 10500, 80},
    {"decode/TP4/B1/ctx8192/q1", 1, 1, 8192, 1, kBF16, 6.2, 4},
    {"decode/TP4/B1/ctx131072/q1", 1, 1, 131072, 1, kBF16, 16.8, 11},
    {"decode/TP4/B8/ctx32768/q1", 8, 1, 32768, 1, kBF16, 24.2, 18},
    {"decode/TP4/B64/ctx131072/q1", 64, 1, 131072, 1, kBF16, 494.0, 500.9},
    {"decode/TP1/B64/ctx131072/q1", 64, 1, 131072, 4, kBF16, 497.2, 501},
    {"decode/TP4/B128/ctx8192/q1", 128, 1, 8192, 1, kBF16, 71.4, 65},
    {"decode/TP4/B32/ctx131072/q4", 32, 4, 131072, 1, kBF16, 295.1, 260},
    {"decode/TP4/B32/ctx131072/q1", 32, 1, 131072, 1, kBF16, 252.8, 0},
    {"decode/TP4/B32/ctx131072/q1/fp8", 32, 1, 131072, 1, kE4M3, 252.8, 138},
    {"decode/TP1/B32/ctx131072/q4/fp8", 32, 4, 131072, 4, kE4M3, 0, 0},
    {"decode/TP1/B32/ctx131072/q16", 32, 16, 131072, 4, kBF16, 0, 0},
    {"prefill/TP4/S8192/ctx8192/fp8", 1, 8192, 8192, 1, kE4M3, 74.6, 25},
    {"extend/TP8/S128/ctx1048576/fp8", 1, 128, 1048576, 1, kE4M3, 0, 0},
    {"prefill/TP4/S8192/ctx131072/fp8", 1, 8192, 131072, 1, kE4M3, 1670, 530},
};

__global__ void fill_random(uint16_t* out, int64_t count, uint32_t seed, bool fp8) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x = (static_cast<uint64_t>(i) + seed) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 32, x *= 0xD6E8FEB86659FD93ull, x ^= x >> 32;
    // bf16 in +-[0.25, 2), or two e4m3 in that range
    const uint32_t bits = static_cast<uint32_t>(x);
    out[i] = fp8 ? (bits & 0x8080) | (0x2828 + ((bits >> 8) & 0x0f0f))
                 : (bits & 0x8000) | (0x3e80 + ((bits >> 16) & 0x17f));
  }
}

template <typename T>
T* device_array(size_t count) {
  T* data = nullptr;
  CUDA_OK(cudaMalloc(&data, std::max<size_t>(count, 1) * sizeof(T)));
  return data;
}

template <typename T>
T* upload(const std::vector<T>& host) {
  T* data = device_array<T>(host.size());
  CUDA_OK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return data;
}

double floor_us(const Case& c) {
  double flops = 0;
  for (int i = 0; i < c.queries; ++i)
    flops += 2.0 * kHeadDim * c.heads * c.batch * (c.context - c.queries + i + 1);
  const double bytes = double(c.batch) * c.context * kHeadDim * hopper::element_bytes(c.key_type) +
                       double(c.batch) * c.queries * c.heads * (2 * kHeadDim + 64);
  return 1e6 * std::max(bytes / kReadBytesPerSecond, flops / kFlopsPerSecond);
}

struct Result {
  double median_us, spread;  // coefficient of variation
};

Result time_case(const Case& c, int num_sms, bool ordered) {
  const int blocks = (c.context + kBlock - 1) / kBlock;
  const int64_t bytes = int64_t{c.batch} * blocks * kBlock * kHeadDim * hopper::element_bytes(c.key_type);
  const int sets = static_cast<int>(std::clamp<int64_t>((2 * kL2Bytes + bytes - 1) / bytes + 1, 1, 64));
  const int64_t pages = int64_t{sets} * c.batch * blocks;
  auto* keys = device_array<uint16_t>(pages * kBlock * kHeadDim * hopper::element_bytes(c.key_type) / 2);
  fill_random<<<1024, 256>>>(keys, pages * kBlock * kHeadDim * hopper::element_bytes(c.key_type) / 2, 7,
                             c.key_type == kE4M3);
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  if (!ordered) std::shuffle(table.begin(), table.end(), std::mt19937(3));
  const size_t rows = size_t(c.batch) * c.queries * c.heads;
  msa::sm90::IndexLaunch l;
  l.shape = {c.batch, c.batch * c.queries, c.queries, blocks, c.heads, num_sms};
  l.key_type = c.key_type;
  l.num_pages = pages;
  auto* q = device_array<uint16_t>(rows * kHeadDim);
  fill_random<<<1024, 256>>>(q, rows * kHeadDim, 99, false);
  l.q = q;
  l.k_pages = keys;
  auto* seq_lens = upload(std::vector<int32_t>(c.batch, c.context));
  l.seq_lens = seq_lens;
  auto* tables = upload(table);
  l.selected = device_array<int32_t>(rows * l.selection.top_k);
  l.schedule = device_array<uint8_t>(index_schedule_bytes(l.shape));
  l.workspace = device_array<uint8_t>(index_workspace_bytes(l.shape));

  const double estimate = floor_us(c) * 1.5 + 3;
  const int launches = static_cast<int>(std::clamp(3000.0 / estimate, 2.0, 64.0));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  l.block_table = tables;
  CUDA_OK(prepare_index(l, stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) {
    l.block_table = tables + int64_t{i % sets} * c.batch * blocks;
    CUDA_OK(launch_index(l, stream));
  }
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) CUDA_OK(cudaGraphLaunch(executable, stream));
  std::vector<double> times;
  for (int i = 0; i < kReplays; ++i) {
    CUDA_OK(cudaEventRecord(begin, stream));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    float ms;
    CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(1e3 * ms / launches);
  }
  std::sort(times.begin(), times.end());
  const double mean = std::accumulate(times.begin(), times.end(), 0.0) / kReplays;
  double variance = 0;
  for (const double t : times) variance += (t - mean) * (t - mean) / kReplays;
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaStreamDestroy(stream));
  for (void* p :
       {(void*)keys, (void*)q, (void*)seq_lens, (void*)tables, (void*)l.selected, l.schedule, l.workspace})
    CUDA_OK(cudaFree(p));
  return {times[kReplays / 2], std::sqrt(variance) / mean};
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, ordered = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--ordered") == 0) ordered = true;
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
  }
  int num_sms = 0;
  CUDA_OK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
  if (!json)
    std::printf("%-36s %10s %6s %10s %6s %10s %7s %10s\n", "case", "us", "cv%", "floor", "frac", "peer",
                "ratio", "goal");
  for (const Case& c : kCases) {
    if (std::string(c.name).find(only) == std::string::npos) continue;
    const Result r = time_case(c, num_sms, ordered);
    const double floor = floor_us(c);
    if (json) {
      std::printf(
          "{\"case\":\"%s\",\"us\":%.2f,\"cv\":%.4f,\"floor_us\":%.2f,\"peer_us\":%.1f,\"goal_us\":%.1f}\n",
          c.name, r.median_us, r.spread, floor, c.peer_us, c.goal_us);
    } else {
      std::printf("%-36s %10.2f %6.1f %10.2f %6.2f %10.1f %7.2f %10.1f\n", c.name, r.median_us,
                  100 * r.spread, floor, floor / r.median_us, c.peer_us, c.peer_us / r.median_us, c.goal_us);
    }
    std::fflush(stdout);
  }
  return 0;
}
