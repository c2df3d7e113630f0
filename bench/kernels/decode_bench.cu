// SPDX-License-Identifier: Apache-2.0
// Times the Hopper decode attend kernel over a fixed list of cases: median of graph replays, each replay
// running through enough different inputs to leave the L2 behind. Prints the floor (each needed byte once at
// 4,459 GB/s, or the arithmetic at 809 TFLOP/s) and the best peer kernel on the same card.
//   decode_bench [--json] [--only SUBSTRING] [--once]
#include <numeric>

#include "attend_inputs.h"
#include "bench.cuh"
#include "msa/sm90/attend/attend_decode.h"

namespace {

using namespace bench;
using msa::sm90::AttendDecodeParams;
using msa::sm90::KvType;

struct BenchCase {
  std::string name;
  int kv_heads, group, batch, queries, context;
  bool fp8;
  Pattern pattern;
  double peer_us;
};

std::vector<BenchCase> cases() {
  using enum Pattern;
  return {
      {"decode/TP4/B1/ctx8192", 1, 16, 1, 1, 8192, false, kIndependent, 5.9},
      {"decode/TP4/B1/ctx131072", 1, 16, 1, 1, 131072, false, kIndependent, 6.0},
      {"decode/TP4/B1/ctx131072/fp8", 1, 16, 1, 1, 131072, true, kIndependent, 0},
      {"decode/TP8/B1/ctx131072", 1, 8, 1, 1, 131072, false, kIndependent, 0},
      {"decode/TP4/B8/ctx32768", 1, 16, 8, 1, 32768, false, kIndependent, 8.5},
      {"decode/TP4/B64/ctx131072", 1, 16, 64, 1, 131072, false, kIndependent, 24.9},
      {"decode/TP1/B64/ctx131072", 4, 16, 64, 1, 131072, false, kIndependent, 72.1},
      {"decode/TP4/B128/ctx8192", 1, 16, 128, 1, 8192, false, kIndependent, 39.5},
      {"decode/TP4/B32/ctx131072/q4", 1, 16, 32, 4, 131072, false, kIndependent, 37.8},
      {"decode/TP4/B32/ctx131072/bf16", 1, 16, 32, 1, 131072, false, kIndependent, 0},
      {"decode/TP4/B32/ctx131072/fp8", 1, 16, 32, 1, 131072, true, kIndependent, 21.8},
      {"decode/TP4/B128/ctx8192/fp8", 1, 16, 128, 1, 8192, true, kIndependent, 0},
      {"extend/TP8/S16/ctx131072", 1, 8, 1, 16, 131072, false, kIndependent, 30.3},
      {"extend/TP8/S128/ctx131072", 1, 8, 1, 128, 131072, false, kIndependent, 37.0},
      {"extend/TP8/S128/ctx1048576", 1, 8, 1, 128, 1048576, false, kIndependent, 41.2},
  };
}

struct Slot {
  __nv_bfloat16 *q, *out;
  int32_t *selected, *table;
};

struct Bench {
  void* pool;
  int64_t pool_bytes;
  cudaStream_t stream;

  double floor_us(const BenchCase& c, const Selection& in) const {
    const double rows = double(c.batch) * c.queries * c.kv_heads * c.group;
    const double bytes = in.distinct * 65536.0 / (c.fp8 ? 2 : 1) + rows * 512;
    return std::max(bytes / kReadBytesPerUs, in.pairs * double(c.group) * 128 * 128 * 4 / kFlopsPerUs);
  }

  void run(const BenchCase& c, const Options& options) const {
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
    int32_t* lens_device = upload(std::vector<int32_t>(c.batch, c.context));
    double floor = 0;
    int count = 1;
    for (int i = 0; i < count; ++i) {
      const Selection in = make_selection({c.kv_heads, c.batch, c.queries, c.context, c.pattern}, i);
      if (i == 0) {
        floor = floor_us(c, in);
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
    CHECK(cudaDeviceSynchronize());
    void* workspace = nullptr;
    const int64_t workspace_bytes = msa::sm90::attend_decode_workspace_bytes(rows, c.kv_heads);
    CHECK(cudaMalloc(&workspace, workspace_bytes));
    if (workspace_bytes > 0) CHECK(cudaMemset(workspace, 0, workspace_bytes));
    const auto launch = [&](int i) {
      AttendDecodeParams p;
      p.q = slots[i].q, p.kv_pages = pool, p.selected = slots[i].selected, p.block_table = slots[i].table;
      p.seq_lens = lens_device, p.out = slots[i].out, p.rows = rows, p.num_requests = c.batch;
      p.queries_per_request = c.queries, p.kv_heads = c.kv_heads, p.group = c.group, p.max_blocks = blocks;
      p.num_pages = num_pages, p.workspace = workspace;
      return launch_attend_decode(p, c.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
    };
    print_line(options, c.name, time_launches(stream, count, options.once, launch), floor, c.peer_us);
    for (const Slot& slot : slots)
      for (void* data : {static_cast<void*>(slot.q), static_cast<void*>(slot.out),
                         static_cast<void*>(slot.selected), static_cast<void*>(slot.table)})
        CHECK(cudaFree(data));
    for (void* data : {workspace, static_cast<void*>(lens_device)}) CHECK(cudaFree(data));
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  Bench bench = {};
  bench.pool_bytes = 20ll << 30;
  CHECK(cudaMalloc(&bench.pool, bench.pool_bytes));
  CHECK(cudaStreamCreate(&bench.stream));
  bool filled = false, fp8 = false;
  for (const BenchCase& c : cases()) {
    if (c.name.find(options.only) == std::string::npos) continue;
    if (!filled || c.fp8 != fp8)
      fill_random<<<4096, 256>>>(static_cast<uint32_t*>(bench.pool), bench.pool_bytes / 4, 1, fp8 = c.fp8);
    filled = true;
    CHECK(cudaDeviceSynchronize());
    bench.run(c, options);
  }
  return 0;
}
