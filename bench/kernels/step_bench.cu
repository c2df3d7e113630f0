// SPDX-License-Identifier: Apache-2.0
// Times what one sparse layer adds to a decode step: index, selection and attention, chained on one stream in
// one CUDA graph, as a plan's sparse() launches them. Inputs rotate past the L2.
//   step_bench [--json] [--only SUBSTRING] [--once]
#include <cmath>
#include <numeric>
#include <random>

#include "bench.cuh"
#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/index/index.h"
#include "sm90/tensor_map.h"

namespace {

using namespace bench;
using msa::kBlock;
using msa::kHeadDim;
using msa::sm90::AttendDecodeParams;
using msa::sm90::IndexLaunch;
using msa::sm90::KvType;

struct BenchCase {
  std::string name;
  int kv_heads, group, batch, queries, context;
  bool fp8;
  double peer_us;  // the better index and the better attend of two serving stacks, added
};

const BenchCase kCases[] = {
    {"TP8/B1/ctx2048", 1, 8, 1, 1, 2048, false, 0},
    {"TP8/B1/ctx32768", 1, 8, 1, 1, 32768, false, 0},
    {"TP8/B1/ctx131072", 1, 8, 1, 1, 131072, false, 0},
    {"TP4/B1/ctx8192", 1, 16, 1, 1, 8192, false, 12.1},
    {"TP4/B1/ctx131072", 1, 16, 1, 1, 131072, false, 22.8},
    {"TP8/B4/ctx32768", 1, 8, 4, 1, 32768, false, 0},
    {"TP4/B8/ctx32768", 1, 16, 8, 1, 32768, false, 32.7},
    {"TP4/B32/ctx131072", 1, 16, 32, 1, 131072, false, 0},
    {"TP4/B32/ctx131072/q4", 1, 16, 32, 4, 131072, false, 332.9},
    {"TP4/B32/ctx131072/fp8", 1, 16, 32, 1, 131072, true, 274.6},
    {"TP4/B64/ctx131072", 1, 16, 64, 1, 131072, false, 518.9},
    {"TP1/B64/ctx131072", 4, 16, 64, 1, 131072, false, 569.3},
    {"TP4/B128/ctx8192", 1, 16, 128, 1, 8192, false, 110.9},
    {"TP8/S16/ctx131072", 1, 8, 1, 16, 131072, false, 1340.3},
    {"TP8/S16/ctx1048576", 1, 8, 1, 16, 1048576, false, 10527.4},
    {"TP8/S128/ctx131072", 1, 8, 1, 128, 131072, false, 1427},
    {"TP8/S128/ctx1048576", 1, 8, 1, 128, 1048576, false, 11161.2},
};

template <typename T>
T* device_array(size_t count, int value = 0) {
  T* data = nullptr;
  CHECK(cudaMalloc(&data, std::max<size_t>(count, 1) * sizeof(T)));
  CHECK(cudaMemset(data, value, count * sizeof(T)));
  return data;
}

// Each needed byte once, or the arithmetic; selections of different queries overlap by chance alone.
double floor_us(const BenchCase& c) {
  const double rows = double(c.batch) * c.queries * c.kv_heads, width = c.fp8 ? 1 : 2;
  const double index_bytes = double(c.batch) * c.context * kHeadDim * width;
  const double index_flops = rows * c.context * kHeadDim * 2;
  const double blocks = double(c.context) / kBlock;
  const double distinct = blocks * (1 - std::pow(1 - 16 / blocks, c.queries)) * c.batch * c.kv_heads;
  const double attend_bytes = distinct * 2 * kBlock * kHeadDim * width + rows * c.group * kHeadDim * 4;
  return std::max(index_bytes / kReadBytesPerUs, index_flops / kFlopsPerUs) + attend_bytes / kReadBytesPerUs;
}

void run(const BenchCase& c, const Options& options, cudaStream_t stream, int num_sms) {
  const int rows = c.batch * c.queries, blocks = c.context / kBlock, width = c.fp8 ? 1 : 2;
  const int64_t index_bytes = int64_t{c.batch} * c.context * kHeadDim * width;
  const int sets = static_cast<int>(std::clamp<int64_t>(2 * kL2Bytes / index_bytes + 1, 1, 64));
  const int64_t pages = int64_t{sets} * c.batch * blocks;
  const int64_t key_words = pages * kBlock * kHeadDim * width / 4, kv_words = key_words * 2 * c.kv_heads;
  auto *keys = device_array<uint32_t>(key_words), *kv = device_array<uint32_t>(kv_words);
  fill_random<<<4096, 256>>>(keys, key_words, 1, c.fp8);
  fill_random<<<4096, 256>>>(kv, kv_words, 2, c.fp8);
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  const int32_t* tables = upload(table);
  const size_t index_q_words = size_t(rows) * c.kv_heads * kHeadDim / 2, q_words = index_q_words * c.group;
  auto *index_q = device_array<uint32_t>(index_q_words), *q = device_array<uint32_t>(q_words);
  fill_random<<<1024, 256>>>(index_q, index_q_words, 3, false);
  fill_random<<<1024, 256>>>(q, q_words, 4, false);

  IndexLaunch l;
  l.shape = {c.batch, rows, c.queries, blocks, c.kv_heads, num_sms};
  l.key_type = c.fp8 ? hopper::Element::kE4M3 : hopper::Element::kBF16;
  l.num_pages = pages;
  l.q = index_q, l.k_pages = keys;
  l.seq_lens = upload(std::vector<int32_t>(c.batch, c.context));
  l.selected = device_array<int32_t>(size_t(rows) * c.kv_heads * l.selection.top_k);
  l.schedule = device_array<uint8_t>(index_schedule_bytes(l.shape));
  l.workspace = device_array<uint8_t>(index_workspace_bytes(l.shape));
  AttendDecodeParams p;
  p.q = reinterpret_cast<const __nv_bfloat16*>(q), p.kv_pages = kv;
  p.selected = l.selected, p.seq_lens = l.seq_lens;
  p.out = device_array<__nv_bfloat16>(q_words * 2);
  p.workspace = device_array<uint8_t>(msa::sm90::attend_decode_workspace_bytes(rows, c.kv_heads));
  p.rows = rows, p.num_requests = c.batch, p.queries_per_request = c.queries;
  p.kv_heads = c.kv_heads, p.group = c.group, p.max_blocks = blocks, p.num_pages = static_cast<int>(pages);
  CHECK(prepare_index(l, stream));
  CHECK(cudaDeviceSynchronize());
  constexpr int kFewUnits = 4;  // as plans have it
  const bool selects =
      can_score(l) && rows * c.kv_heads <= kFewUnits && blocks <= msa::sm90::attend_select_blocks();
  const auto launch = [&](int i) {
    l.block_table = p.block_table = tables + int64_t{i % sets} * c.batch * blocks;
    if (selects) {
      msa::sm90::IndexScores s;
      const cudaError_t error = launch_scores(l, &s, stream);
      if (error != cudaSuccess) return error;
      p.select = {s.scores,
                  l.selected,
                  s.counter,
                  s.units_per_block,
                  l.selection.local_blocks,
                  l.selection.init_blocks};
      return launch_attend_decode(p, c.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
    }
    const cudaError_t error = launch_index(l, stream);
    if (error != cudaSuccess) return error;
    return launch_attend_decode(p, c.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
  };
  print_line(options, c.name, time_launches(stream, std::max(sets, 3), options.once, launch), floor_us(c),
             c.peer_us);
  for (const void* data :
       {static_cast<const void*>(keys), static_cast<const void*>(kv), static_cast<const void*>(tables),
        static_cast<const void*>(index_q), static_cast<const void*>(q), static_cast<const void*>(l.seq_lens),
        static_cast<const void*>(l.selected), static_cast<const void*>(l.schedule),
        static_cast<const void*>(l.workspace), static_cast<const void*>(p.out),
        static_cast<const void*>(p.workspace)})
    CHECK(cudaFree(const_cast<void*>(data)));
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  int num_sms = 0;
  CHECK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  for (const BenchCase& c : kCases)
    if (c.name.find(options.only) != std::string::npos) run(c, options, stream, num_sms);
  return 0;
}
