// SPDX-License-Identifier: Apache-2.0
// The Hopper attend kernels against the scalar reference with double sums. Pages are unordered; every page
// that no request owns, and every key past the end of a sequence, is NaN.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "msa/reference.h"
#include "msa/sm90/attend/attend_decode.h"
#include "msa/sm90/attend/attend_prefill.h"

namespace msa::sm90 {
namespace {

// bf16 probabilities, partial results and outputs: each rounds at 2^-9; their sum stays under this.
constexpr double kTolerance = 5e-3;
constexpr int kRowsChecked = 48;
constexpr uint16_t kNan = 0x7fff;

#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, (call)) << #call

template <typename T>
struct Device {
  T* data = nullptr;
  size_t count = 0;
  explicit Device(size_t n) : count(n) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    EXPECT_EQ(cudaSuccess, cudaMemcpy(data, host.data(), count * sizeof(T), cudaMemcpyHostToDevice));
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data); }
  void poison() { EXPECT_EQ(cudaSuccess, cudaMemset(data, 0xff, count * sizeof(T))); }
  std::vector<T> host() const {
    std::vector<T> out(count);
    EXPECT_EQ(cudaSuccess, cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
};

uint16_t to_bf16(float x) {
  const __nv_bfloat16 value = __float2bfloat16_rn(x);
  uint16_t bits;
  std::memcpy(&bits, &value, 2);
  return bits;
}

float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float x;
  std::memcpy(&x, &wide, 4);
  return x;
}

enum class Pattern { kIndependent, kCorrelated, kIdentical };

struct Shape {
  std::vector<int> seq_lens;
  std::vector<int> queries;  // of each request
  int kv_heads = 1, group = 16, top_k = 16;
  Pattern pattern = Pattern::kIndependent;
  bool fp8 = false;
  uint32_t seed = 1;
};

struct Case {
  Shape shape;
  int total = 0, max_blocks = 0, num_pages = 0;
  std::vector<int32_t> cu, seq_lens, table, selected;
  std::vector<uint16_t> q, pages;
  std::vector<uint8_t> pages8;

  explicit Case(const Shape& s) : shape(s), rng_(s.seed) {
    cu.push_back(0);
    for (size_t r = 0; r < s.seq_lens.size(); ++r) {
      seq_lens.push_back(s.seq_lens[r]);
      cu.push_back(cu.back() + s.queries[r]);
      max_blocks = std::max(max_blocks, (s.seq_lens[r] + 127) / 128);
    }
    total = cu.back();
    max_blocks += 3;  // unused columns
    make_pages();
    make_selection();
    q.resize(size_t(total) * s.kv_heads * s.group * 128);
    for (auto& x : q) x = to_bf16(2 * normal());
  }

  Plan plan() const {
    return {static_cast<int>(seq_lens.size()), cu.data(), seq_lens.data(), table.data(), max_blocks};
  }

 private:
  void make_pages() {
    const int requests = static_cast<int>(seq_lens.size());
    int used = 0;
    for (int len : seq_lens) used += (len + 127) / 128;
    num_pages = used * 2 + 1;
    std::vector<int> order(num_pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng_);
    table.assign(size_t(requests) * max_blocks, -1);
    const size_t tile = 128 * 128, page = tile * 2 * shape.kv_heads;
    pages.assign(page * num_pages, kNan);
    pages8.assign(shape.fp8 ? pages.size() : 0, 0x7f);
    int next = 0;
    for (int r = 0; r < requests; ++r)
      for (int b = 0; b < (seq_lens[r] + 127) / 128; ++b) {
        const int id = order[next++];
        table[size_t(r) * max_blocks + b] = id;
        for (int kv = 0; kv < 2 * shape.kv_heads; ++kv)
          for (int key = 0; key < std::min(128, seq_lens[r] - b * 128); ++key)
            for (int d = 0; d < 128; ++d) set_element(id * page + kv * tile + key * 128 + d, normal());
      }
  }

  void set_element(size_t at, float x) {
    if (shape.fp8) {
      const __nv_fp8_e4m3 small(x);
      std::memcpy(&pages8[at], &small, 1);
      x = static_cast<float>(small);
    }
    pages[at] = to_bf16(x);
  }

  void make_selection() {
    const int k = shape.top_k;
    selected.assign(size_t(total) * shape.kv_heads * k, -1);
    for (size_t r = 0; r < seq_lens.size(); ++r)
      for (int head = 0; head < shape.kv_heads; ++head) {
        std::vector<int> order;
        for (int i = 0; i < shape.queries[r]; ++i) {
          const int position = seq_lens[r] - shape.queries[r] + i;
          if (position < 0) continue;
          const int own = position / 128;
          if (order.empty() || order.size() != size_t(own) || shape.pattern == Pattern::kIndependent) {
            order.resize(own);  // the blocks before the query's own, in order of preference
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), rng_);
          } else if (shape.pattern == Pattern::kCorrelated && own > 1) {
            std::swap(order[rng_() % own], order[rng_() % own]);
          }
          const int count = std::min(k, own + 1);
          int32_t* out = selected.data() + (size_t(cu[r] + i) * shape.kv_heads + head) * k;
          std::copy(order.begin(), order.begin() + (count - 1), out);
          out[count - 1] = own;
          std::sort(out, out + count);
        }
      }
  }

  // From a table: millions are drawn per case.
  float normal() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return normals_[state_ >> 52];
  }

  static std::vector<float> make_normals(std::mt19937& rng) {
    std::normal_distribution<float> normal;
    std::vector<float> out(4096);
    for (float& x : out) x = normal(rng);
    return out;
  }

  std::mt19937 rng_;
  std::vector<float> normals_ = make_normals(rng_);
  uint64_t state_ = 12345;
};

// The device's side of a case.
struct OnDevice {
  const Case& c;
  Device<uint16_t> q, pages;
  Device<uint8_t> pages8;
  Device<int32_t> selected, table, seq_lens, cu;
  Device<uint16_t> out;
  Device<uint8_t> workspace, decode_workspace;

  explicit OnDevice(const Case& made)
      : c(made),
        q(c.q),
        pages(c.pages),
        pages8(c.pages8),
        selected(c.selected),
        table(c.table),
        seq_lens(c.seq_lens),
        cu(c.cu),
        out(c.q.size()),
        workspace(attend_prefill_workspace_bytes(c.total, c.shape.kv_heads, c.shape.group, c.shape.top_k,
                                                 c.max_blocks)),
        decode_workspace(attend_decode_workspace_bytes(c.total, c.shape.kv_heads)) {
    EXPECT_EQ(cudaSuccess, cudaMemset(decode_workspace.data, 0, decode_workspace.count));
    out.poison();
    workspace.poison();
  }

  cudaError_t decode(bool uniform, cudaStream_t stream = nullptr) {
    AttendDecodeParams p;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q.data);
    p.kv_pages = c.shape.fp8 ? static_cast<const void*>(pages8.data) : pages.data;
    p.selected = selected.data, p.block_table = table.data, p.seq_lens = seq_lens.data;
    p.cu_seqlens_q = uniform ? nullptr : cu.data;
    p.out = reinterpret_cast<__nv_bfloat16*>(out.data);
    p.workspace = decode_workspace.data;
    p.rows = c.total, p.num_requests = static_cast<int>(c.seq_lens.size());
    p.queries_per_request = c.shape.queries[0];
    p.kv_heads = c.shape.kv_heads, p.group = c.shape.group, p.top_k = c.shape.top_k,
    p.max_blocks = c.max_blocks;
    p.num_pages = c.num_pages;
    return launch_attend_decode(p, c.shape.fp8 ? KvType::kE4M3 : KvType::kBF16, stream);
  }

  cudaError_t prefill(cudaStream_t stream = nullptr) {
    AttendPrefillParams p;
    p.q = reinterpret_cast<const __nv_bfloat16*>(q.data);
    p.kv_pages = reinterpret_cast<const __nv_bfloat16*>(pages.data);
    p.selected = selected.data, p.block_table = table.data, p.seq_lens = seq_lens.data,
    p.cu_seqlens_q = cu.data;
    p.out = reinterpret_cast<__nv_bfloat16*>(out.data);
    p.workspace = workspace.data;
    p.total_queries = c.total, p.num_requests = static_cast<int>(c.seq_lens.size()),
    p.num_pages = c.num_pages;
    p.kv_heads = c.shape.kv_heads, p.group = c.shape.group, p.top_k = c.shape.top_k,
    p.max_blocks = c.max_blocks;
    return launch_attend_prefill(p, stream);
  }
};

// Rows to compare: the first and last of every request, and others at random.
std::vector<std::pair<int, int>> rows_to_check(const Case& c) {
  std::vector<std::pair<int, int>> all, rows;
  for (size_t r = 0; r + 1 < c.cu.size(); ++r)
    for (int row = c.cu[r]; row < c.cu[r + 1]; ++row)
      if (c.seq_lens[r] > 0) {
        all.push_back({static_cast<int>(r), row});
        if (row == c.cu[r] || row + 1 == c.cu[r + 1]) rows.push_back(all.back());
      }
  std::mt19937 rng(7);
  std::shuffle(all.begin(), all.end(), rng);
  for (size_t i = 0; i < all.size() && i < kRowsChecked; ++i) rows.push_back(all[i]);
  return rows;
}

void expect_matches_reference(const Case& c, const std::vector<uint16_t>& got) {
  std::vector<uint16_t> want(c.q.size(), 0);
  AttendParams params;
  params.heads = {c.shape.kv_heads * c.shape.group, c.shape.kv_heads};
  params.top_k = c.shape.top_k;
  params.q = c.q.data(), params.kv_pages = c.pages.data(), params.selected = c.selected.data();
  params.out = want.data();
  const auto rows = rows_to_check(c);
  std::vector<std::thread> threads;
  constexpr size_t kThreads = 16;
  for (size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < rows.size(); i += kThreads)
        if (i == 0 || std::find(rows.begin(), rows.begin() + i, rows[i]) == rows.begin() + i)
          reference::attend_query(c.plan(), params, rows[i].first, rows[i].second);
    });
  for (auto& thread : threads) thread.join();
  const size_t width = size_t(c.shape.kv_heads) * c.shape.group * 128;
  double worst = 0;
  for (const auto& [request, row] : rows) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < width; ++i) {
      const double a = from_bf16(got[row * width + i]), b = from_bf16(want[row * width + i]);
      ASSERT_TRUE(std::isfinite(a)) << "request " << request << " row " << row << " element " << i;
      error += (a - b) * (a - b), norm += b * b;
    }
    worst = std::max(worst, std::sqrt(error / norm));
    ASSERT_LT(std::sqrt(error / norm), kTolerance)
        << "request " << request << " row " << row - c.cu[request] << " of " << c.shape.queries[request]
        << ", seq_len " << c.seq_lens[request];
  }
  for (size_t r = 0; r + 1 < c.cu.size(); ++r)
    for (size_t i = c.cu[r] * width; i < c.cu[r + 1] * width; ++i) {
      ASSERT_TRUE(std::isfinite(from_bf16(got[i]))) << "row " << i / width << " element " << i % width;
      if (c.seq_lens[r] == 0) ASSERT_EQ(0, got[i]) << "padding row " << i / width;
    }
  testing::Test::RecordProperty("worst", std::to_string(worst));
}

const std::vector<int> kCornerLengths = {1, 127, 128, 129, 2047, 2048, 2049, 5000};

class Shapes : public testing::TestWithParam<std::tuple<int, int, Pattern>> {
 protected:
  Shape shape() const {
    Shape s;
    s.kv_heads = std::get<0>(GetParam()), s.group = std::get<1>(GetParam()),
    s.pattern = std::get<2>(GetParam());
    return s;
  }
};

TEST_P(Shapes, DecodeOfOneQueryMatchesTheReferenceAtEveryCornerLength) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.seq_lens.push_back(0);  // padding
  s.queries.assign(s.seq_lens.size(), 1);
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.decode(true));
  expect_matches_reference(c, run.out.host());
}

TEST_P(Shapes, PrefillOfARaggedBatchMatchesTheReference) {
  Shape s = shape();
  s.seq_lens = kCornerLengths;
  s.queries = {1, 127, 1, 129, 2047, 16, 700, 300};
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.prefill());
  expect_matches_reference(c, run.out.host());
}

INSTANTIATE_TEST_SUITE_P(All, Shapes,
                         testing::Combine(testing::Values(1, 2, 4), testing::Values(4, 8, 16),
                                          testing::Values(Pattern::kIndependent, Pattern::kCorrelated,
                                                          Pattern::kIdentical)));

TEST(AttendDecode, EverySplitOfTheSlotsMatchesTheReference) {
  for (int batch : {1, 2, 8, 20, 40, 80, 250}) {
    Shape s;
    s.seq_lens.assign(batch, 4000 + batch);
    s.queries.assign(batch, 1);
    if (batch > 80) s.seq_lens.assign(batch, 700);
    const Case c(s);
    OnDevice run(c);
    ASSERT_CUDA(run.decode(true));
    expect_matches_reference(c, run.out.host());
  }
}

TEST(AttendDecode, SeveralQueriesPerRequestMatchTheReference) {
  for (int queries : {2, 4, 16}) {
    Shape s;
    s.seq_lens = {16, 130, 0, 2049, 3000};
    s.queries.assign(s.seq_lens.size(), queries);
    s.kv_heads = 2, s.group = 8;
    const Case c(s);
    OnDevice run(c);
    ASSERT_CUDA(run.decode(true));
    expect_matches_reference(c, run.out.host());
  }
}

TEST(AttendDecode, RaggedExtendsMatchTheReference) {
  Shape s;
  s.seq_lens = {16, 130, 5000, 2049, 3000};
  s.queries = {16, 3, 1, 40, 7};
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.decode(false));
  expect_matches_reference(c, run.out.host());
}

TEST(AttendDecode, Fp8KeysAndValuesMatchTheReference) {
  for (int group : {4, 8, 16})
    for (int batch : {1, 30, 260}) {
      Shape s;
      s.seq_lens.assign(batch, batch > 100 ? 600 : 3001);
      s.queries.assign(batch, 1);
      s.group = group, s.fp8 = true;
      const Case c(s);
      OnDevice run(c);
      ASSERT_CUDA(run.decode(true));
      expect_matches_reference(c, run.out.host());
    }
}

TEST(AttendDecode, TopKBelowSixteenMatchesTheReference) {
  for (int top_k : {1, 3, 8}) {
    Shape s;
    s.seq_lens = {100, 2500, 4000};
    s.queries = {1, 1, 1};
    s.top_k = top_k;
    const Case c(s);
    OnDevice run(c);
    ASSERT_CUDA(run.decode(true));
    expect_matches_reference(c, run.out.host());
  }
}

TEST(AttendPrefill, TopKBelowSixteenMatchesTheReference) {
  for (int top_k : {1, 3, 8}) {
    Shape s;
    s.seq_lens = {100, 2500};
    s.queries = {100, 600};
    s.top_k = top_k;
    const Case c(s);
    OnDevice run(c);
    ASSERT_CUDA(run.prefill());
    expect_matches_reference(c, run.out.host());
  }
}

TEST(AttendPrefill, ALongContextMatchesTheReference) {
  Shape s;
  s.seq_lens = {70000};  // over 512 blocks: the longer windows
  s.queries = {1500};
  s.group = 8;
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.prefill());
  expect_matches_reference(c, run.out.host());
}

TEST(AttendPrefill, ManyShortRequestsShareAWindow) {
  Shape s;
  for (int i = 0; i < 90; ++i) s.seq_lens.push_back(1 + i * 17 % 400), s.queries.push_back(1 + i * 17 % 400);
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.prefill());
  expect_matches_reference(c, run.out.host());
}

TEST(AttendPrefill, AgreesWithDecodeOnEveryRow) {
  Shape s;
  s.seq_lens = {3000, 900};
  s.queries = {2000, 900};
  const Case c(s);
  OnDevice run(c);
  ASSERT_CUDA(run.prefill());
  const auto a = run.out.host();
  run.out.poison();
  ASSERT_CUDA(run.decode(false));
  const auto b = run.out.host();
  const size_t width = 16 * 128;
  for (int row = 0; row < c.total; ++row) {
    double error = 0, norm = 0;
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      const double x = from_bf16(a[i]), y = from_bf16(b[i]);
      error += (x - y) * (x - y), norm += y * y;
    }
    ASSERT_LT(std::sqrt(error / norm), kTolerance) << "row " << row;
  }
}

TEST(Attend, RepeatsAndGraphReplaysGiveTheSameBits) {
  Shape s;
  s.seq_lens = {3000, 900, 129};
  s.queries = {800, 30, 129};
  const Case c(s);
  OnDevice run(c);
  cudaStream_t stream;
  ASSERT_CUDA(cudaStreamCreate(&stream));
  for (const bool prefill : {true, false}) {
    run.out.poison();
    ASSERT_CUDA(prefill ? run.prefill(stream) : run.decode(false, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    const auto first = run.out.host();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    ASSERT_CUDA(prefill ? run.prefill(stream) : run.decode(false, stream));
    ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
    ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; ++i) {
      run.out.poison();
      run.workspace.poison();
      ASSERT_CUDA(cudaDeviceSynchronize());
      ASSERT_CUDA(cudaGraphLaunch(exec, stream));
      ASSERT_CUDA(cudaStreamSynchronize(stream));
      ASSERT_EQ(first, run.out.host()) << (prefill ? "prefill" : "decode") << " replay " << i;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }
  cudaStreamDestroy(stream);
}

TEST(Attend, EmptyBatchesLaunchNothing) {
  EXPECT_EQ(cudaSuccess, launch_attend_decode({}, KvType::kBF16, nullptr));
  EXPECT_EQ(cudaSuccess, launch_attend_prefill({}, nullptr));
}

}  // namespace
}  // namespace msa::sm90
