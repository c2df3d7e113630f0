// SPDX-License-Identifier: Apache-2.0
#include "msa_gpu/index_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "msa/reference.h"
#include "msa_gpu/late_write.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

#define CUDA_OK(call) ASSERT_EQ(call, cudaSuccess)

constexpr uint16_t kNaN = 0x7fff;

template <typename V>
struct DeviceArray {
  V* data = nullptr;
  size_t count = 0;
  DeviceArray(size_t n, int poison) : count(n) {
    if (cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(V)) != cudaSuccess) std::abort();
    if (cudaMemset(data, poison, n * sizeof(V)) != cudaSuccess) std::abort();
  }
  explicit DeviceArray(const std::vector<V>& host) : DeviceArray(host.size(), 0) {
    if (cudaMemcpy(data, host.data(), count * sizeof(V), cudaMemcpyHostToDevice) != cudaSuccess) std::abort();
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  std::vector<V> download() const {
    std::vector<V> host(count);
    if (cudaMemcpy(host.data(), data, count * sizeof(V), cudaMemcpyDeviceToHost) != cudaSuccess) std::abort();
    return host;
  }
};

uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float from_e4m3(uint8_t b) {
  const int exponent = (b >> 3) & 15, mantissa = b & 7;
  const float magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0f, -6) : std::ldexp(1.0f + mantissa / 8.0f, exponent - 7);
  return b & 0x80 ? -magnitude : magnitude;
}

// A whole problem on the host, and the reference's answer.
struct Problem {
  IndexCase c;
  int total_queries = 0, max_blocks = 0, num_pages = 0;
  std::vector<int32_t> cu, table, expected;
  std::vector<uint16_t> q, keys;
  std::vector<uint8_t> keys8;

  explicit Problem(const IndexCase& from) : c(from) {
    std::mt19937 random(c.seed);
    cu.assign(1, 0);
    int used = 0;
    for (size_t r = 0; r < c.queries.size(); ++r) {
      cu.push_back(cu.back() + c.queries[r]);
      max_blocks = std::max(max_blocks, (c.seq_lens[r] + kBlock - 1) / kBlock);
      used += (c.seq_lens[r] + kBlock - 1) / kBlock;
    }
    total_queries = cu.back();
    max_blocks += c.extra_blocks;
    num_pages = used + 5;
    fill_pages(random);
    q.resize(size_t(total_queries) * c.heads * kHeadDim);
    std::normal_distribution<float> normal;
    for (uint16_t& x : q) x = to_bf16(c.integers ? float(int(random() % 5) - 2) : normal(random));
    if (c.best_in_one_column) std::fill(q.begin(), q.end(), to_bf16(1));
    answer();
  }

  void fill_pages(std::mt19937& random) {
    std::vector<int32_t> pages(num_pages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    const int num_requests = static_cast<int>(c.queries.size());
    table.assign(size_t(num_requests) * max_blocks, -1);
    const size_t elements = size_t(num_pages) * kBlock * kHeadDim;
    keys.assign(elements, kNaN);
    const bool fp8 = c.key_type == hopper::Element::kE4M3;
    if (fp8) keys8.assign(elements, 0x7e);  // the largest number: a key read wrongly would win
    std::normal_distribution<float> normal;
    size_t next = 0;
    for (int r = 0; r < num_requests; ++r)
      for (int key = 0; key < c.seq_lens[r]; ++key) {
        int32_t& page = table[size_t(r) * max_blocks + key / kBlock];
        if (key % kBlock == 0) page = pages[next++];
        for (int d = 0; d < kHeadDim; ++d) {
          const size_t at = (size_t(page) * kBlock + key % kBlock) * kHeadDim + d;
          float x = c.integers ? float(int(random() % 5) - 2) : normal(random);
          if (c.best_in_one_column) x = key / kBlock % 32 == 5 ? float(random() % 3) : -float(random() % 3);
          if (fp8) {
            static constexpr uint8_t kIntegers[5] = {0xc0, 0xb8, 0x00, 0x38, 0x40};  // -2 .. 2
            uint8_t byte = c.integers ? kIntegers[int(x) + 2] : static_cast<uint8_t>(random() % 256);
            if ((byte & 0x7f) == 0x7f) byte ^= 1;
            keys8[at] = byte;
            x = from_e4m3(byte);
          }
          keys[at] = to_bf16(x);
        }
      }
  }

  Plan plan() const {
    return {static_cast<int>(c.queries.size()), cu.data(), c.seq_lens.data(), table.data(), max_blocks};
  }

  IndexParams params(int32_t* selected) const {
    IndexParams p;
    p.heads = {c.heads, c.heads};
    p.selection = c.selection;
    p.q = q.data();
    p.k_pages = keys.data();
    p.selected = selected;
    return p;
  }

  void answer() {
    expected.assign(size_t(total_queries) * c.heads * c.selection.top_k, -1);
    const Plan the_plan = plan();
    const IndexParams the_params = params(expected.data());
    const int num_threads = std::max(1u, std::thread::hardware_concurrency());
    std::vector<std::thread> threads;
    for (int w = 0; w < num_threads; ++w)
      threads.emplace_back([&, w] {
        for (size_t r = 0; r < c.queries.size(); ++r)
          for (int row = cu[r]; row < cu[r + 1]; ++row)
            if (row % num_threads == w && c.seq_lens[r] > 0)
              reference::index_query(the_plan, the_params, static_cast<int>(r), row);
      });
    for (std::thread& t : threads) t.join();
  }
};

// The problem on the device.
struct Device {
  DeviceArray<uint16_t> q;
  DeviceArray<uint8_t> keys;
  DeviceArray<int32_t> cu, seq_lens, table, selected;
  IndexLaunch launch;
  DeviceArray<uint8_t> schedule, workspace;

  static std::vector<uint8_t> bytes_of(const Problem& p) {
    if (p.c.key_type == hopper::Element::kE4M3) return p.keys8;
    const auto* first = reinterpret_cast<const uint8_t*>(p.keys.data());
    return {first, first + p.keys.size() * 2};
  }

  static IndexShape shape_of(const Problem& p) {
    return {.num_requests = static_cast<int>(p.c.queries.size()),
            .total_queries = p.total_queries,
            .max_queries = *std::max_element(p.c.queries.begin(), p.c.queries.end()),
            .max_blocks = p.max_blocks,
            .heads = p.c.heads,
            .num_sms = 132};
  }

  explicit Device(const Problem& p)
      : q(p.q),
        keys(bytes_of(p)),
        cu(p.cu),
        seq_lens(p.c.seq_lens),
        table(p.table),
        selected(p.expected.size(), 0xcd),
        schedule(index_schedule_bytes(shape_of(p)), 0xff),
        workspace(index_workspace_bytes(shape_of(p)), 0xff) {
    launch.shape = shape_of(p);
    launch.selection = p.c.selection;
    launch.key_type = p.c.key_type;
    launch.num_pages = p.num_pages;
    launch.q = q.data;
    launch.k_pages = keys.data;
    launch.cu_seqlens_q = p.c.uniform ? nullptr : cu.data;
    launch.seq_lens = seq_lens.data;
    launch.block_table = table.data;
    launch.selected = selected.data;
    launch.schedule = schedule.data;
    launch.workspace = workspace.data;
  }
};

// The problem in shares, and the way from candidates to selections.
struct Shares {
  std::vector<std::unique_ptr<DeviceArray<uint8_t>>> keys;
  std::vector<IndexLaunch> launches;
  DeviceArray<uint8_t> list;
  DeviceArray<uint64_t> candidates;
  IndexGather gather;

  Shares(const Problem& p, const Device& d)
      : list(index_share_layout(d.launch.shape).bytes, 0xff),
        candidates(size_t(p.c.shares) * p.total_queries * p.c.heads * kListLength, 0xff),
        gather{.shape = d.launch.shape,
               .selection = p.c.selection,
               .cu_seqlens_q = d.launch.cu_seqlens_q,
               .seq_lens = d.launch.seq_lens,
               .num_shares = p.c.shares,
               .index_heads = p.c.heads,
               .candidates = candidates.data,
               .share_stride = int64_t{p.total_queries} * p.c.heads * kListLength,
               .selected = d.selected.data} {
    const std::vector<uint8_t> all = Device::bytes_of(p);
    const size_t page = size_t{kBlock} * kHeadDim * hopper::element_bytes(p.c.key_type);
    for (int share = 0; share < p.c.shares; ++share) {
      std::vector<uint8_t> mine;
      for (int at = share; at < p.num_pages; at += p.c.shares)
        mine.insert(mine.end(), all.begin() + at * page, all.begin() + (at + 1) * page);
      keys.push_back(std::make_unique<DeviceArray<uint8_t>>(mine));
      IndexLaunch& l = launches.emplace_back(d.launch);
      l.share = {share, p.c.shares};
      l.has_all_pages = p.c.all_pages;
      if (!p.c.all_pages) {
        l.num_pages = static_cast<int64_t>(mine.size() / page);
        l.k_pages = keys.back()->data;
      }
      l.share_list = list.data;
      l.candidates = candidates.data + candidates.count / p.c.shares * share;
    }
  }
};

// Prepares and runs the case: one cache, or share after share.
cudaError_t run(const Device& d, const Shares* shares, cudaStream_t stream) {
  if (shares == nullptr) return launch_index(d.launch, stream);
  for (const IndexLaunch& launch : shares->launches) {
    cudaError_t error = prepare_index(launch, stream);
    if (error == cudaSuccess) error = launch_candidates(launch, stream);
    if (error != cudaSuccess) return error;
  }
  return launch_gather(shares->gather, stream);
}

// Rows whose sets differ must differ in blocks whose scores are equal up to rounding.
void compare(const Problem& p, const std::vector<int32_t>& actual) {
  const int top_k = p.c.selection.top_k;
  int different = 0, rows = 0;
  double worst_gap = 0;
  for (size_t r = 0; r < p.c.queries.size(); ++r)
    for (int row = p.cu[r]; row < p.cu[r + 1]; ++row)
      for (int head = 0; head < p.c.heads; ++head, ++rows) {
        const size_t at = (size_t(row) * p.c.heads + head) * top_k;
        const std::vector<int32_t> want(&p.expected[at], &p.expected[at] + top_k),
            got(&actual[at], &actual[at] + top_k);
        if (want == got) continue;
        ++different;
        ASSERT_FALSE(p.c.integers) << p.c.name << ": request " << r << " row " << row << " head " << head
                                   << " got " << ::testing::PrintToString(got) << " want "
                                   << ::testing::PrintToString(want);
        std::vector<float> scores(p.max_blocks + 1);
        std::vector<int32_t> unused(p.expected.size());
        reference::block_scores(p.plan(), p.params(unused.data()), static_cast<int>(r), row, head,
                                scores.data());
        double gap = 0;
        std::vector<int32_t> lost, won;
        std::set_difference(want.begin(), want.end(), got.begin(), got.end(), std::back_inserter(lost));
        std::set_difference(got.begin(), got.end(), want.begin(), want.end(), std::back_inserter(won));
        ASSERT_EQ(lost.size(), won.size());
        for (size_t i = 0; i < lost.size(); ++i) {
          ASSERT_GE(won[i], 0);
          gap = std::max(gap, double(std::fabs(scores[lost[i]] - scores[won[i]])));
        }
        std::printf("  %s: request %zu row %d head %d swaps a near-tie, gap %.2e\n", p.c.name.c_str(), r, row,
                    head, gap);
        worst_gap = std::max(worst_gap, gap);
      }
  EXPECT_LE(different, (rows + 9999) / 10000) << p.c.name << ": of " << rows << " rows";
  // 128 products of size ~1 in fp32, whatever the order: far below 1e-3; scores of fp8 keys reach 1e4.
  EXPECT_LE(worst_gap, p.c.key_type == hopper::Element::kE4M3 ? 5e-2 : 1e-4) << p.c.name;
}

// The pages with large numbers in place of this step's keys.
std::vector<uint8_t> without_new_keys(const Problem& p) {
  std::vector<uint8_t> bytes = Device::bytes_of(p);
  const size_t key_bytes = size_t{kHeadDim} * hopper::element_bytes(p.c.key_type);
  for (size_t r = 0; r < p.c.queries.size(); ++r)
    for (int key = p.c.seq_lens[r] - p.c.queries[r]; key < p.c.seq_lens[r]; ++key) {
      const size_t page = p.table[r * p.max_blocks + key / kBlock];
      const auto first = bytes.begin() + (page * kBlock + key % kBlock) * key_bytes;
      std::fill(first, first + key_bytes, 0x7e);
    }
  return bytes;
}

}  // namespace

void check_index(const IndexCase& c) {
  const Problem p(c);
  Device d(p);
  std::optional<Shares> of_case;
  if (c.shares > 1) of_case.emplace(p, d);
  const Shares* shares = of_case ? &*of_case : nullptr;
  CUDA_OK(prepare_index(d.launch, nullptr));
  const DeviceArray<uint8_t> keys(Device::bytes_of(p));
  if (c.late_keys) {
    CUDA_OK(cudaMemcpy(d.keys.data, without_new_keys(p).data(), d.keys.count, cudaMemcpyHostToDevice));
    CUDA_OK(write_late(d.keys.data, keys.data, keys.count, nullptr));
  }
  CUDA_OK(run(d, shares, nullptr));
  CUDA_OK(cudaDeviceSynchronize());
  const std::vector<int32_t> first = d.selected.download();
  compare(p, first);

  // Again from poison, then from a graph: the same bits.
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_OK(prepare_index(d.launch, stream));
  CUDA_OK(run(d, shares, stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  for (int repeat = 0; repeat < c.replays; ++repeat) {
    CUDA_OK(cudaMemset(d.selected.data, 0xcd, d.selected.count * 4));
    CUDA_OK(cudaMemset(d.workspace.data, repeat == 0 ? 0 : 0xff, d.workspace.count));
    CUDA_OK(cudaMemset(d.schedule.data, 0xff, d.schedule.count));
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const std::vector<int32_t> again = d.selected.download();
    int different = 0, row = -1;
    for (size_t i = 0; i < first.size(); ++i)
      if (again[i] != first[i] && different++ == 0) row = static_cast<int>(i) / c.selection.top_k;
    EXPECT_EQ(different, 0) << c.name << ": replay " << repeat << " differs first at row " << row;
  }
  CUDA_OK(cudaGraphExecDestroy(executable));
  CUDA_OK(cudaGraphDestroy(graph));
  CUDA_OK(cudaStreamDestroy(stream));
}

}  // namespace msa::sm90
