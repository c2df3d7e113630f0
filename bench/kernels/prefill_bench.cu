// SPDX-License-Identifier: Apache-2.0
// Times the Hopper prefill attend kernels over a fixed list of cases: median of graph replays. Prints the
// floor (each needed byte once at 4,459 GB/s, or the arithmetic at 809 TFLOP/s) and the best peer kernel on
// the same card.
//   prefill_bench [--json] [--only SUBSTRING] [--once] [--limit X]
// --limit sets the union limit: 0 sends every tile block by block, 1000 every tile by its union.
#include <numeric>

#include "attend_inputs.h"
#include "bench.cuh"
#include "msa/sm90/attend/attend_prefill.h"
#include "sm90/tensor_map.h"

namespace {

using namespace bench;
using msa::sm90::AttendPrefillParams;

struct BenchCase {
  std::string name;
  int kv_heads, group, batch, queries, context;
  bool fp8;
  Pattern pattern;
  double peer_us;
};

std::vector<BenchCase> cases() {
  using enum Pattern;
  std::vector<BenchCase> list = {
      {"prefill/TP8/S128/ctx131072", 1, 8, 1, 128, 131072, false, kIndependent, 37.0},
      {"prefill/TP8/S2048/ctx1048576", 1, 8, 1, 2048, 1048576, false, kIndependent, 424},
      {"prefill/TP4/S8192/ctx131072", 1, 16, 1, 8192, 131072, false, kIndependent, 1270},
      {"prefill/TP4/S8192/ctx1048576", 1, 16, 1, 8192, 1048576, false, kIndependent, 1680},
      {"prefill/TP4/S2048/ctx2048", 1, 16, 1, 2048, 2048, false, kIndependent, 0},
      {"prefill/TP4/S4096/ctx4096", 1, 16, 1, 4096, 4096, false, kIndependent, 0},
      {"prefill/TP4/S16384/ctx16384", 1, 16, 1, 16384, 16384, false, kIndependent, 0},
      {"prefill/TP1/S32768/ctx32768", 4, 16, 1, 32768, 32768, false, kIndependent, 16650},
      {"prefill/TP1/S8192/ctx8192", 4, 16, 1, 8192, 8192, false, kIndependent, 3780},
  };
  const std::pair<Pattern, const char*> patterns[] = {
      {kIndependent, ""}, {kCorrelated, "/correlated"}, {kIdentical, "/identical"}};
  for (const auto& [pattern, suffix] : patterns) {
    const std::string s = suffix;
    list.push_back({"prefill/TP4/S8192/ctx8192" + s, 1, 16, 1, 8192, 8192, false, pattern, 990.5});
    list.push_back({"prefill/TP4/S32768/ctx32768" + s, 1, 16, 1, 32768, 32768, false, pattern, 4260});
    list.push_back({"prefill/TP8/S8192/ctx8192" + s, 1, 8, 1, 8192, 8192, false, pattern, 920.9});
    list.push_back({"prefill/TP8/S32768/ctx32768" + s, 1, 8, 1, 32768, 32768, false, pattern, 4040});
  }
  list.push_back({"prefill/TP4/S32768/ctx32768/fp8", 1, 16, 1, 32768, 32768, true, kIndependent, 9010});
  list.push_back({"prefill/TP4/S8192/ctx8192/fp8", 1, 16, 1, 8192, 8192, true, kIndependent, 0});
  list.push_back({"prefill/TP4/S8192/ctx8192/fp8/identical", 1, 16, 1, 8192, 8192, true, kIdentical, 0});
  list.push_back({"prefill/TP4/S8192/ctx131072/fp8", 1, 16, 1, 8192, 131072, true, kIndependent, 2380});
  list.push_back({"prefill/TP8/S2048/ctx1048576/fp8", 1, 8, 1, 2048, 1048576, true, kIndependent, 0});
  return list;
}

struct Slot {
  __nv_bfloat16 *q, *out;
  int32_t *selected, *table;
};

struct Bench {
  void* pool;
  int64_t pool_bytes;
  cudaStream_t stream;
  float union_limit;

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
    std::vector<int32_t> cu, lens(c.batch, c.context);
    for (int r = 0; r <= c.batch; ++r) cu.push_back(r * c.queries);
    int32_t *cu_device = upload(cu), *lens_device = upload(lens);
    const Selection in = make_selection({c.kv_heads, c.batch, c.queries, c.context, c.pattern}, 1);
    for (int i = 0; i < 2; ++i) {
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
    CHECK(cudaMalloc(&workspace, msa::sm90::attend_prefill_workspace_bytes(rows, c.batch, c.kv_heads, c.group,
                                                                           16, blocks)));
    const auto launch = [&](int i) {
      AttendPrefillParams p;
      p.q = slots[i].q, p.kv_pages = pool;
      p.selected = slots[i].selected, p.block_table = slots[i].table, p.out = slots[i].out;
      p.seq_lens = lens_device, p.cu_seqlens_q = cu_device;
      p.workspace = workspace, p.total_queries = rows, p.num_requests = c.batch, p.num_pages = num_pages;
      p.kv_heads = c.kv_heads, p.group = c.group, p.max_blocks = blocks;
      p.union_limit = union_limit;
      p.kv_type = c.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
      return launch_attend_prefill(p, stream);
    };
    print_line(options, c.name, time_launches(stream, 2, options.once, launch), floor_us(c, in), c.peer_us);
    for (const Slot& slot : slots)
      for (void* data : {static_cast<void*>(slot.q), static_cast<void*>(slot.out),
                         static_cast<void*>(slot.selected), static_cast<void*>(slot.table)})
        CHECK(cudaFree(data));
    for (void* data : {workspace, static_cast<void*>(cu_device), static_cast<void*>(lens_device)})
      CHECK(cudaFree(data));
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  Bench bench = {};
  bench.pool_bytes = 20ll << 30;
  CHECK(cudaMalloc(&bench.pool, bench.pool_bytes));
  CHECK(cudaStreamCreate(&bench.stream));
  bench.union_limit = msa::sm90::kUnionLimit;
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], "--limit") == 0) bench.union_limit = std::strtof(argv[i + 1], nullptr);
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
