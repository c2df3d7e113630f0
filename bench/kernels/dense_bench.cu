// SPDX-License-Identifier: Apache-2.0
// Times dense attention over a fixed list of cases: median of graph replays. Prints the floor (each needed
// byte once at 4,459 GB/s, or the arithmetic at 809 TFLOP/s) and cuDNN's time on the same card.
//   dense_bench [--json] [--only SUBSTRING] [--once]
#include <numeric>
#include <random>

#include "bench.cuh"
#include "msa/sm90/dense/dense.h"
#include "sm90/tensor_map.h"

namespace {

using namespace bench;
using msa::sm90::DenseParams;

struct BenchCase {
  std::string name;
  int kv_heads, group, batch, queries, context;
  bool fp8;
  double peer_us;  // cuDNN, bf16; 0: not measured
};

std::vector<BenchCase> cases() {
  return {
      {"prefill/TP4/S8192", 1, 16, 1, 8192, 8192, false, 530},
      {"prefill/TP4/S16384", 1, 16, 1, 16384, 16384, false, 1890},
      {"prefill/TP4/S32768", 1, 16, 1, 32768, 32768, false, 7590},
      {"prefill/TP4/S65536", 1, 16, 1, 65536, 65536, false, 29900},
      {"prefill/TP4/S131072", 1, 16, 1, 131072, 131072, false, 127800},
      {"prefill/TP8/S8192", 1, 8, 1, 8192, 8192, false, 311.8},
      {"prefill/TP8/S32768", 1, 8, 1, 32768, 32768, false, 3374.1},
      {"prefill/TP1/S8192", 4, 16, 1, 8192, 8192, false, 1755.3},
      {"prefill/TP1/S32768", 4, 16, 1, 32768, 32768, false, 0},
      {"prefill/TP4/B16/S2048", 1, 16, 16, 2048, 2048, false, 0},
      {"prefill/TP4/S8192/ctx131072", 1, 16, 1, 8192, 131072, false, 0},
      {"extend/TP8/S2048/ctx1048576", 1, 8, 1, 2048, 1048576, false, 0},
      {"extend/TP8/S128/ctx131072", 1, 8, 1, 128, 131072, false, 0},
      {"extend/TP8/S128/ctx1048576", 1, 8, 1, 128, 1048576, false, 0},
      {"extend/TP8/S16/ctx131072", 1, 8, 1, 16, 131072, false, 0},
      {"extend/TP8/S16/ctx1048576", 1, 8, 1, 16, 1048576, false, 0},
      {"decode/TP4/B1/ctx8192", 1, 16, 1, 1, 8192, false, 21.8},
      {"decode/TP4/B1/ctx131072", 1, 16, 1, 1, 131072, false, 33.5},
      {"decode/TP4/B64/ctx8192", 1, 16, 64, 1, 8192, false, 88.4},
      {"decode/TP4/B32/ctx131072", 1, 16, 32, 1, 131072, false, 471},
      {"decode/TP8/B32/ctx131072", 1, 8, 32, 1, 131072, false, 0},
      {"decode/TP1/B32/ctx32768", 4, 16, 32, 1, 32768, false, 0},
      {"decode/TP4/B32/ctx131072/q4", 1, 16, 32, 4, 131072, false, 0},
      {"prefill/TP4/S32768/fp8", 1, 16, 1, 32768, 32768, true, 7590},
      {"extend/TP8/S16/ctx1048576/fp8", 1, 8, 1, 16, 1048576, true, 0},
      {"decode/TP4/B1/ctx131072/fp8", 1, 16, 1, 1, 131072, true, 0},
      {"decode/TP4/B64/ctx8192/fp8", 1, 16, 64, 1, 8192, true, 0},
      {"decode/TP4/B32/ctx131072/fp8", 1, 16, 32, 1, 131072, true, 471},
      {"decode/TP4/B32/ctx131072/q4/fp8", 1, 16, 32, 4, 131072, true, 0},
  };
}

double floor_us(const BenchCase& c) {
  const double rows = double(c.batch) * c.queries * c.kv_heads * c.group;
  const double keys = double(c.batch) * c.context * c.kv_heads;
  const double bytes = keys * (c.fp8 ? 256 : 512) + rows * 512;
  const double visible = c.context - (c.queries - 1) / 2.0;  // keys of the average query
  return std::max(bytes / kReadBytesPerUs, rows * visible * 512 / kFlopsPerUs);
}

void run(const BenchCase& c, const Options& options, void* pool, int64_t pool_bytes, cudaStream_t stream) {
  const int rows = c.batch * c.queries, blocks = (c.context + 127) / 128;
  const int64_t page_bytes = 65536ll * c.kv_heads / (c.fp8 ? 2 : 1);
  const int64_t input_bytes = int64_t{c.batch} * blocks * page_bytes;
  const auto slots = static_cast<int>(
      c.queries > 128 ? 1 : std::clamp<int64_t>((kRotateBytes + input_bytes - 1) / input_bytes, 2, 40));
  const auto num_pages =
      static_cast<int>(std::min(pool_bytes / page_bytes, std::max<int64_t>(slots, 4) * c.batch * blocks));
  std::vector<int32_t> shuffled(num_pages), lens(c.batch, c.context);
  std::iota(shuffled.begin(), shuffled.end(), 0);
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(3));
  std::vector<int32_t> table(size_t(slots) * c.batch * blocks);
  for (size_t i = 0; i < table.size(); ++i) table[i] = shuffled[i % shuffled.size()];
  int32_t *table_device = upload(table), *lens_device = upload(lens);
  const size_t q_count = size_t(rows) * c.kv_heads * c.group * 128;
  DenseParams p;
  __nv_bfloat16* q = nullptr;
  CHECK(cudaMalloc(&q, q_count * 2));
  CHECK(cudaMalloc(&p.out, q_count * 2));
  CHECK(
      cudaMalloc(&p.workspace, msa::sm90::dense_workspace_bytes(rows, c.batch, blocks, c.kv_heads, c.group)));
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(q), q_count / 2, 99, false);
  CHECK(cudaDeviceSynchronize());
  p.q = q, p.kv_pages = pool, p.seq_lens = lens_device, p.total_queries = rows, p.num_requests = c.batch;
  p.max_queries_per_request = c.queries, p.max_blocks = blocks, p.num_pages = num_pages;
  p.kv_heads = c.kv_heads, p.group = c.group;
  p.kv_type = c.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
  const Timing timing = time_launches(stream, slots, options.once, [&](int i) {
    p.block_table = table_device + size_t(i) * c.batch * blocks;
    return launch_dense(p, stream);
  });
  print_line(options, c.name, timing, floor_us(c), c.peer_us);
  for (void* data : {static_cast<void*>(q), static_cast<void*>(p.out), p.workspace,
                     static_cast<void*>(table_device), static_cast<void*>(lens_device)})
    CHECK(cudaFree(data));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  const int64_t pool_bytes = 5ll << 30;
  void* pool = nullptr;
  CHECK(cudaMalloc(&pool, pool_bytes));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  int filled = -1;  // with numbers of which type
  for (const BenchCase& c : cases()) {
    if (c.name.find(options.only) == std::string::npos) continue;
    if (filled != int{c.fp8})
      fill_random<<<4096, 256>>>(static_cast<uint32_t*>(pool), pool_bytes / 4, 1, c.fp8), filled = c.fp8;
    run(c, options, pool, pool_bytes, stream);
  }
  return 0;
}
