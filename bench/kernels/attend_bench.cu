// SPDX-License-Identifier: Apache-2.0
// Times the Hopper attend kernels over a fixed list of cases: median of graph replays, each replay running
// through enough different inputs to leave the L2 behind. Prints the floor (each needed byte once at 4,459
// GB/s, or the arithmetic at 809 TFLOP/s) and the best peer kernel on the same card.
//   attend_bench [--json] [--only SUBSTRING] [--once]
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/attend/attend_prefill.h"

namespace {

using namespace msa::sm90;

constexpr double kReadBytesPerUs = 4459e3, kFlopsPerUs = 809e6;
constexpr int64_t kRotateBytes = 4ll * 60 << 20;
constexpr int kReplays = 21;
constexpr double kWarmMs = 60;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define CHECK(call) check((call), #call)

enum class Pattern { kIndependent, kCorrelated, kIdentical };

struct BenchCase {
  std::string name;
  bool prefill;
  int kv_heads, group, batch, queries, context;
  bool fp8;
  Pattern pattern;
  double peer_us;
};

std::vector<BenchCase> cases() {
  using enum Pattern;
  std::vector<BenchCase> list = {
      {"decode/TP4/B1/ctx8192", false, 1, 16, 1, 1, 8192, false, kIndependent, 5.9},
      {"decode/TP4/B1/ctx131072", false, 1, 16, 1, 1, 131072, false, kIndependent, 6.0},
      {"decode/TP8/B1/ctx131072", false, 1, 8, 1, 1, 131072, false, kIndependent, 0},
      {"decode/TP4/B8/ctx32768", false, 1, 16, 8, 1, 32768, false, kIndependent, 8.5},
      {"decode/TP4/B64/ctx131072", false, 1, 16, 64, 1, 131072, false, kIndependent, 24.9},
      {"decode/TP1/B64/ctx131072", false, 4, 16, 64, 1, 131072, false, kIndependent, 72.1},
      {"decode/TP4/B128/ctx8192", false, 1, 16, 128, 1, 8192, false, kIndependent, 39.5},
      {"decode/TP4/B32/ctx131072/q4", false, 1, 16, 32, 4, 131072, false, kIndependent, 37.8},
      {"decode/TP4/B32/ctx131072/bf16", false, 1, 16, 32, 1, 131072, false, kIndependent, 0},
      {"decode/TP4/B32/ctx131072/fp8", false, 1, 16, 32, 1, 131072, true, kIndependent, 21.8},
      {"decode/TP4/B128/ctx8192/fp8", false, 1, 16, 128, 1, 8192, true, kIndependent, 0},
      {"extend/TP8/S16/ctx131072", false, 1, 8, 1, 16, 131072, false, kIndependent, 30.3},
      {"extend/TP8/S128/ctx131072", false, 1, 8, 1, 128, 131072, false, kIndependent, 37.0},
      {"extend/TP8/S128/ctx1048576", false, 1, 8, 1, 128, 1048576, false, kIndependent, 41.2},
      {"prefill/TP8/S128/ctx131072", true, 1, 8, 1, 128, 131072, false, kIndependent, 37.0},
      {"prefill/TP8/S2048/ctx1048576", true, 1, 8, 1, 2048, 1048576, false, kIndependent, 424},
      {"prefill/TP4/S8192/ctx131072", true, 1, 16, 1, 8192, 131072, false, kIndependent, 1270},
      {"prefill/TP4/S8192/ctx1048576", true, 1, 16, 1, 8192, 1048576, false, kIndependent, 1680},
      {"prefill/TP1/S8192/ctx8192", true, 4, 16, 1, 8192, 8192, false, kIndependent, 3780},
  };
  const std::pair<Pattern, const char*> patterns[] = {
      {kIndependent, ""}, {kCorrelated, "/correlated"}, {kIdentical, "/identical"}};
  for (const auto& [pattern, suffix] : patterns) {
    const std::string s = suffix;
    list.push_back({"prefill/TP4/S8192/ctx8192" + s, true, 1, 16, 1, 8192, 8192, false, pattern, 990.5});
    list.push_back({"prefill/TP4/S32768/ctx32768" + s, true, 1, 16, 1, 32768, 32768, false, pattern, 4260});
    list.push_back({"prefill/TP8/S8192/ctx8192" + s, true, 1, 8, 1, 8192, 8192, false, pattern, 920.9});
    list.push_back({"prefill/TP8/S32768/ctx32768" + s, true, 1, 8, 1, 32768, 32768, false, pattern, 4040});
  }
  return list;
}

__global__ void fill_random(uint32_t* data, int64_t words, uint32_t seed, bool fp8) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    // bf16 or e4m3 numbers of both signs, sizes from 1/8 to just under 2
    data[i] = fp8 ? (x & 0x9f9f9f9fu) | 0x20202020u : (x & 0x81ff81ffu) | 0x3e003e00u;
  }
}

// The clock the SMs run at just now, in MHz: a card that has been idle takes milliseconds to reach full
// speed.
__global__ void measure_clock(float* mhz) {
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

// Blocks of one query: its own, and others before it.
void choose(int own, Pattern pattern, std::mt19937& rng, std::vector<int>& chosen) {
  const int wanted = std::min(15, own);
  const auto fresh = [&] {
    int block = 0;
    do block = static_cast<int>(rng() % own);
    while (std::find(chosen.begin(), chosen.end(), block) != chosen.end());
    return block;
  };
  if (pattern == Pattern::kIndependent) chosen.clear();
  if (pattern == Pattern::kCorrelated && wanted < own && !chosen.empty())
    for (int i = 0; i < 2; ++i) {
      const int block = fresh();
      chosen[rng() % chosen.size()] = block;
    }
  while (static_cast<int>(chosen.size()) < wanted) chosen.push_back(fresh());
}

struct Inputs {
  std::vector<int32_t> selected;
  int64_t pairs = 0, distinct = 0;
};

Inputs make_selection(const BenchCase& c, uint32_t seed) {
  Inputs in;
  std::mt19937 rng(seed);
  in.selected.assign(size_t(c.batch) * c.queries * c.kv_heads * 16, -1);
  std::vector<char> seen;
  for (int r = 0; r < c.batch; ++r)
    for (int head = 0; head < c.kv_heads; ++head) {
      seen.assign(c.context / 128 + 1, 0);
      std::vector<int> chosen;
      for (int i = 0; i < c.queries; ++i) {
        const int own = (c.context - c.queries + i) / 128;
        choose(own, c.pattern, rng, chosen);
        int32_t* out = in.selected.data() + (size_t(r * c.queries + i) * c.kv_heads + head) * 16;
        std::copy(chosen.begin(), chosen.end(), out);
        out[chosen.size()] = own;
        std::sort(out, out + chosen.size() + 1);
        in.pairs += static_cast<int64_t>(chosen.size()) + 1;
        for (size_t k = 0; k <= chosen.size(); ++k) seen[out[k]] = 1;
      }
      in.distinct += std::count(seen.begin(), seen.end(), 1);
    }
  return in;
}

struct Slot {
  __nv_bfloat16 *q, *out;
  int32_t *selected, *table;
};

struct Bench {
  void* pool;
  int64_t pool_bytes;
  cudaStream_t stream;
  float* mhz;  // pinned

  double floor_us(const BenchCase& c, const Inputs& in) const {
    const double rows = double(c.batch) * c.queries * c.kv_heads * c.group;
    const double bytes = in.distinct * 65536.0 / (c.fp8 ? 2 : 1) + rows * 512;
    return std::max(bytes / kReadBytesPerUs, in.pairs * double(c.group) * 128 * 128 * 4 / kFlopsPerUs);
  }

  double time(const std::vector<Slot>& slots, auto&& launch, bool once) const {
    for (const Slot& slot : slots) CHECK(launch(slot));
    CHECK(cudaStreamSynchronize(stream));
    if (once) return 0;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (const Slot& slot : slots) CHECK(launch(slot));
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
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
        us.push_back(ms * 1e3 / slots.size());
    }
    measure_clock<<<1, 1, 0, stream>>>(mhz);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }

  void run(const BenchCase& c, bool json, bool once) const {
    const int rows = c.batch * c.queries, blocks = (c.context + 127) / 128;
    const int64_t page_bytes = 65536ll * c.kv_heads / (c.fp8 ? 2 : 1);
    // As many pages as one input needs, or as many as leave the L2 behind.
    const int64_t wanted = std::max(int64_t{c.batch} * blocks, 2 * kRotateBytes / page_bytes);
    const int num_pages = static_cast<int>(std::min(pool_bytes / page_bytes, wanted));
    std::vector<int32_t> shuffled(num_pages);
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
    size_t next_page = 0;
    const size_t q_count = size_t(rows) * c.kv_heads * c.group * 128;
    std::vector<Slot> slots;
    std::vector<int32_t> cu, lens(c.batch, c.context);
    for (int r = 0; r <= c.batch; ++r) cu.push_back(r * c.queries);
    int32_t *cu_device = upload(cu), *lens_device = upload(lens);
    double floor = 0;
    int count = c.prefill ? 2 : 1;
    for (int i = 0; i < count; ++i) {
      const Inputs in = make_selection(c, c.prefill ? 1 : i);
      if (i == 0) {
        floor = floor_us(c, in);
        if (!c.prefill)
          count = static_cast<int>(std::clamp<int64_t>(kRotateBytes / (in.distinct * 65536) + 1, 3, 200));
      }
      std::vector<int32_t> table(size_t(c.batch) * blocks);
      for (auto& page : table) page = shuffled[next_page++ % shuffled.size()];
      Slot slot = {};
      CHECK(cudaMalloc(&slot.q, q_count * 2));
      CHECK(cudaMalloc(&slot.out, q_count * 2));
      fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(slot.q), q_count / 2, i + 99, false);
      slot.selected = upload(in.selected), slot.table = upload(table);
      slots.push_back(slot);
    }
    void* workspace = nullptr;
    if (c.prefill)
      CHECK(cudaMalloc(&workspace, attend_prefill_workspace_bytes(rows, c.kv_heads, c.group, 16, blocks)));
    void* decode_workspace = nullptr;
    const int64_t decode_bytes = c.prefill ? 0 : attend_decode_workspace_bytes(rows, c.kv_heads);
    CHECK(cudaMalloc(&decode_workspace, decode_bytes + 1));
    CHECK(cudaMemset(decode_workspace, 0, decode_bytes));
    const auto prefill = [&](const Slot& slot) {
      AttendPrefillParams p;
      p.q = slot.q, p.kv_pages = static_cast<const __nv_bfloat16*>(pool), p.selected = slot.selected;
      p.block_table = slot.table, p.seq_lens = lens_device, p.cu_seqlens_q = cu_device, p.out = slot.out;
      p.workspace = workspace, p.total_queries = rows, p.num_requests = c.batch, p.num_pages = num_pages;
      p.kv_heads = c.kv_heads, p.group = c.group, p.max_blocks = blocks;
      return launch_attend_prefill(p, stream);
    };
    const auto decode = [&](const Slot& slot) {
      AttendDecodeParams p;
      p.q = slot.q, p.kv_pages = pool, p.selected = slot.selected, p.block_table = slot.table;
      p.seq_lens = lens_device, p.out = slot.out, p.rows = rows, p.num_requests = c.batch;
      p.queries_per_request = c.queries, p.kv_heads = c.kv_heads, p.group = c.group, p.max_blocks = blocks;
      p.num_pages = num_pages, p.workspace = decode_workspace;
      return launch_attend_decode(p, c.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
    };
    const double us = c.prefill ? time(slots, prefill, once) : time(slots, decode, once);
    if (json)
      std::printf("{\"case\":\"%s\",\"us\":%.2f,\"floor_us\":%.2f,\"peer_us\":%.1f}\n", c.name.c_str(), us,
                  floor, c.peer_us);
    else
      std::printf("%-38s %9.2f us  floor %8.2f (%4.0f%%)  peer %7.1f (%.2fx)  %.0f MHz\n", c.name.c_str(), us,
                  floor, 100 * floor / us, c.peer_us, c.peer_us / us, *mhz);
    std::fflush(stdout);
    for (const Slot& slot : slots)
      for (void* data : {static_cast<void*>(slot.q), static_cast<void*>(slot.out),
                         static_cast<void*>(slot.selected), static_cast<void*>(slot.table)})
        CHECK(cudaFree(data));
    CHECK(cudaFree(workspace));
    CHECK(cudaFree(decode_workspace));
    CHECK(cudaFree(cu_device));
    CHECK(cudaFree(lens_device));
  }
};

}  // namespace

int main(int argc, char** argv) {
  bool json = false, once = false;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--once") == 0) once = true;  // for profilers
    if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
  }
  Bench bench = {};
  bench.pool_bytes = 20ll << 30;
  CHECK(cudaMalloc(&bench.pool, bench.pool_bytes));
  CHECK(cudaStreamCreate(&bench.stream));
  CHECK(cudaMallocHost(&bench.mhz, sizeof(float)));
  bool fp8 = false;
  fill_random<<<4096, 256>>>(static_cast<uint32_t*>(bench.pool), bench.pool_bytes / 4, 1, fp8);
  for (const BenchCase& c : cases()) {
    if (c.name.find(only) == std::string::npos) continue;
    if (c.fp8 != fp8)
      fill_random<<<4096, 256>>>(static_cast<uint32_t*>(bench.pool), bench.pool_bytes / 4, 1, fp8 = c.fp8);
    CHECK(cudaDeviceSynchronize());
    bench.run(c, json, once);
  }
  return 0;
}
