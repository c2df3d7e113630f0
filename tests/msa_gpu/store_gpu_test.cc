// SPDX-License-Identifier: Apache-2.0
// The write path on the device against the CPU's operations: the scalar reference with double sums, which it
// must equal to the bit wherever sin and cos do, and the vector code, from which a value may be one step
// away. Whole page images are compared, so that a write beside its slot shows.
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>

#include "model/rotary.h"
#include "msa/gpu.h"
#include "msa_gpu/attend_case.h"
#include "ops/cpu/reference.h"
#include "ops/ops.h"

namespace msa::sm90 {
namespace {

using gpu::CacheType;
using sparrow::BFloat16;
using sparrow::DType;
using sparrow::Tensor;

constexpr float kEps = 1e-6f;
constexpr uint8_t kPoison = 0xa5;

struct StoreCase {
  int query_heads = 16, kv_heads = 1, rows = 300;
  bool sparse = true;
  CacheType kv_type = CacheType::kBF16, index_type = CacheType::kBF16;
  bool scaled = false;
  int rotary_dim = 64;
  float attention_factor = 1;
  float gain = 3;  // of the projections: large ones saturate e4m3
  uint32_t seed = 1;
};

// Values of one kind of head, [rows, heads, 128], before the store's rounding.
struct Heads {
  int heads = 0;
  std::vector<float> values;
};

struct Problem {
  StoreCase c;
  int columns = 0, num_blocks = 0;
  std::vector<uint16_t> projected;  // [rows, columns]: q, k, v, index q, index k side by side
  std::vector<uint16_t> norms;      // [4, 128]: q, k, index q, index k
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  std::vector<float> scales;  // [kv_heads, 2]
  sparrow::RotaryFrequencies frequencies;
  std::vector<float> cos, sin;

  explicit Problem(const StoreCase& made) : c(made) {
    std::mt19937 rng(c.seed);
    std::normal_distribution<float> normal;
    columns = (c.query_heads + 3 * c.kv_heads + 1) * kHeadDim + 8;  // a stride of its own
    projected.resize(size_t(c.rows) * columns);
    for (auto& x : projected) x = sparrow::to_bf16(c.gain * normal(rng)).bits;
    norms.resize(4 * kHeadDim);
    for (auto& x : norms) x = sparrow::to_bf16(0.3f * normal(rng)).bits;
    const int32_t corners[] = {0, 1, 127, 128, 2047, 2048, 65535, 524288, 1048574, 1048575};
    for (int r = 0; r < c.rows; ++r)
      positions.push_back(r < 10 ? corners[r] : static_cast<int32_t>(rng() % 1048576));
    num_blocks = c.rows / kBlock + 3;
    slots.resize(size_t(num_blocks) * kBlock);
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), rng);
    slots.resize(c.rows);
    for (int r = 5; r < c.rows; r += 17) slots[r] = -1;
    for (int i = 0; i < 2 * c.kv_heads; ++i) scales.push_back(0.03f * (i + 1));
    sparrow::RopeConfig rope;
    rope.rotary_dim = c.rotary_dim;
    frequencies = sparrow::rotary_frequencies(rope);
    make_rotary();
  }

  void make_rotary() {
    const int64_t half = c.rotary_dim / 2;
    cos.resize(size_t(c.rows) * half), sin.resize(cos.size());
    sparrow::ThreadPool pool(1);
    sparrow::Scratch scratch;
    sparrow::Exec exec{pool, scratch, sparrow::CpuIsa::kScalar};
    sparrow::ops::rotary_table(exec, positions, frequencies.inv_freq, c.attention_factor, rotary());
  }
  sparrow::ops::Rotary rotary() {
    const int64_t half = c.rotary_dim / 2;
    return {Tensor(cos.data(), DType::kF32, {c.rows, half}), Tensor(sin.data(), DType::kF32, {c.rows, half})};
  }

  // The first column of each kind.
  int k_column() const { return c.query_heads * kHeadDim; }
  int v_column() const { return k_column() + c.kv_heads * kHeadDim; }
  int index_q_column() const { return v_column() + c.kv_heads * kHeadDim; }
  int index_k_column() const { return index_q_column() + c.kv_heads * kHeadDim; }

  // Normalised and turned by the reference, in f32; norm < 0: as projected.
  Heads expected(int column, int heads, int norm) {
    Heads h{heads, std::vector<float>(size_t(c.rows) * heads * kHeadDim)};
    for (int r = 0; r < c.rows; ++r)
      for (int i = 0; i < heads * kHeadDim; ++i)
        h.values[size_t(r) * heads * kHeadDim + i] =
            sparrow::to_float(BFloat16{projected[size_t(r) * columns + column + i]});
    if (norm < 0) return h;
    const Tensor x(h.values.data(), DType::kF32, {c.rows, heads * kHeadDim});
    const Tensor weight(norms.data() + norm * kHeadDim, DType::kBF16, {kHeadDim});
    sparrow::ops::reference::head_norm_rope(x, weight, kEps, rotary());
    return h;
  }
};

uint8_t to_e4m3(float x) {
  const __nv_fp8_e4m3 value(x);
  uint8_t bits;
  std::memcpy(&bits, &value, 1);
  return bits;
}

// Steps between two numbers of one format, both given by their bits.
int64_t steps_apart(int64_t a, int64_t b, int sign_bit) {
  const auto line = [&](int64_t bits) {
    const int64_t magnitude = bits & ((int64_t{1} << sign_bit) - 1);
    return bits >> sign_bit ? -magnitude : magnitude;
  };
  return std::abs(line(a) - line(b));
}

struct Tally {
  int64_t compared = 0, different = 0, worst = 0;
  void add(int64_t steps) { ++compared, different += steps != 0, worst = std::max(worst, steps); }
};

void write_cache(std::vector<uint8_t>& pages, CacheType type, size_t element, float value, float scale) {
  if (type == CacheType::kE4M3) {
    pages[element] = to_e4m3(value / scale);
  } else {
    const uint16_t bits = sparrow::to_bf16(value).bits;
    std::memcpy(&pages[2 * element], &bits, 2);
  }
}

// Every element of the two images: those the reference wrote are near, all others are untouched.
void compare_pages(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want, CacheType type,
                   Tally& tally) {
  ASSERT_EQ(got.size(), want.size());
  const size_t width = type == CacheType::kE4M3 ? 1 : 2;
  for (size_t i = 0; i < got.size(); i += width) {
    uint16_t a = 0, b = 0;
    std::memcpy(&a, &got[i], width), std::memcpy(&b, &want[i], width);
    tally.add(steps_apart(a, b, width == 1 ? 7 : 15));
  }
}

struct StoreRun {
  Problem& p;
  Device<uint16_t> projected, norms, q_out, index_q_out;
  Device<int32_t> positions, lens, table;
  Device<int64_t> slots;
  Device<float> scales;
  Device<uint8_t> kv_pages, index_pages;
  std::unique_ptr<gpu::Plan> plan;

  static size_t bytes_of(CacheType type) { return type == CacheType::kE4M3 ? 1 : 2; }

  explicit StoreRun(Problem& from)
      : p(from),
        projected(p.projected),
        norms(p.norms),
        q_out(size_t(p.c.rows) * p.c.query_heads * kHeadDim),
        index_q_out(size_t(p.c.rows) * p.c.kv_heads * kHeadDim),
        positions(p.positions),
        lens(std::vector<int32_t>(p.c.rows, 1)),
        table(std::vector<int32_t>(p.c.rows, 0)),
        slots(p.slots),
        scales(p.scales),
        kv_pages(size_t(p.num_blocks) * p.c.kv_heads * 2 * kBlock * kHeadDim * bytes_of(p.c.kv_type)),
        index_pages(size_t(p.num_blocks) * kBlock * kHeadDim * bytes_of(p.c.index_type)) {
    gpu::PlanConfig config;
    config.heads = {p.c.query_heads, p.c.kv_heads};
    config.kv_type = p.c.kv_type, config.index_type = p.c.index_type;
    config.max_requests = config.max_queries = p.c.rows;
    config.max_blocks = 1;
    config.rotary_dim = p.c.rotary_dim;
    config.inv_freq = p.frequencies.inv_freq;
    config.attention_factor = p.c.attention_factor;
    const gpu::Status status = gpu::Plan::create(config, &plan);
    EXPECT_TRUE(status.ok()) << status.message;
    for (auto* out : {&q_out, &index_q_out}) cudaMemset(out->data, kPoison, out->count * 2);
    for (auto* pages : {&kv_pages, &index_pages}) cudaMemset(pages->data, kPoison, pages->count);
  }

  gpu::Status launch() {
    gpu::Step step;
    step.decode = {.num_requests = p.c.rows,
                   .total_queries = p.c.rows,
                   .max_queries = 1,
                   .seq_lens = lens.data,
                   .block_table = table.data,
                   .max_blocks = 1};
    step.positions = positions.data;
    if (gpu::Status s = plan->prepare(step, nullptr); !s.ok()) return s;
    const auto rows = [&](int column) { return gpu::StoreArgs::Rows{projected.data + column, p.columns}; };
    gpu::StoreArgs args;
    args.q = rows(0), args.k = rows(p.k_column()), args.v = rows(p.v_column());
    args.q_norm = norms.data, args.k_norm = norms.data + kHeadDim;
    if (p.c.sparse) {
      args.index_q = rows(p.index_q_column()), args.index_k = rows(p.index_k_column());
      args.index_q_norm = norms.data + 2 * kHeadDim, args.index_k_norm = norms.data + 3 * kHeadDim;
      args.index_q_out = index_q_out.data, args.index_pages = index_pages.data;
    }
    args.eps = kEps;
    args.slots = slots.data;
    args.kv_scales = p.c.scaled ? scales.data : nullptr;
    args.q_out = q_out.data, args.kv_pages = kv_pages.data;
    return plan->store(args, nullptr);
  }
};

// What q_out must hold: the reference's rows, and the poison where a row is padding.
void compare_rows(const Problem& p, const Heads& want, const std::vector<uint16_t>& got, Tally& tally) {
  const uint16_t poison = kPoison << 8 | kPoison;
  const int width = want.heads * kHeadDim;
  for (int r = 0; r < p.c.rows; ++r)
    for (int i = 0; i < width; ++i) {
      const size_t at = size_t(r) * width + i;
      tally.add(steps_apart(got[at], p.slots[r] < 0 ? poison : sparrow::to_bf16(want.values[at]).bits, 15));
    }
}

Tally run_case(const StoreCase& c) {
  Problem p(c);
  StoreRun run(p);
  const gpu::Status status = run.launch();
  EXPECT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
  Tally tally;
  compare_rows(p, p.expected(0, c.query_heads, 0), run.q_out.host(), tally);

  const Heads k = p.expected(p.k_column(), c.kv_heads, 1), v = p.expected(p.v_column(), c.kv_heads, -1);
  const Heads index_k = p.expected(p.index_k_column(), 1, 3);
  std::vector<uint8_t> kv_want(run.kv_pages.count, kPoison), index_want(run.index_pages.count, kPoison);
  for (int r = 0; r < c.rows; ++r) {
    if (p.slots[r] < 0) continue;
    const size_t block = p.slots[r] / kBlock, token = p.slots[r] % kBlock;
    for (int d = 0; d < kHeadDim; ++d) {
      for (int h = 0; h < c.kv_heads; ++h)
        for (int kv = 0; kv < 2; ++kv)
          write_cache(kv_want, c.kv_type,
                      (((block * c.kv_heads + h) * 2 + kv) * kBlock + token) * kHeadDim + d,
                      (kv == 0 ? k : v).values[(size_t(r) * c.kv_heads + h) * kHeadDim + d],
                      c.scaled ? p.scales[2 * h + kv] : 1);
      if (c.sparse)
        write_cache(index_want, c.index_type, (block * kBlock + token) * kHeadDim + d,
                    index_k.values[size_t(r) * kHeadDim + d], 1);
    }
  }
  compare_pages(run.kv_pages.host(), kv_want, c.kv_type, tally);
  compare_pages(run.index_pages.host(), index_want, c.index_type, tally);
  if (c.sparse) compare_rows(p, p.expected(p.index_q_column(), c.kv_heads, 2), run.index_q_out.host(), tally);
  return tally;
}

void expect_near_the_reference(const StoreCase& c) {
  const Tally tally = run_case(c);
  EXPECT_LE(tally.worst, 1) << c.query_heads << "/" << c.kv_heads;
  // Sums, roots and products round alike on both sides; only a sine or cosine whose last bit differs may
  // show.
  EXPECT_LE(tally.different, tally.compared / 100000);
  std::printf("%d/%d heads: %lld of %lld values differ\n", c.query_heads, c.kv_heads,
              static_cast<long long>(tally.different), static_cast<long long>(tally.compared));
}

TEST(Store, EveryHeadShapeEqualsTheReferenceAtPositionsUpToAMillion) {
  for (const int kv_heads : {1, 2, 4})
    for (const int group : {4, 8, 16})
      expect_near_the_reference({.query_heads = kv_heads * group, .kv_heads = kv_heads});
}

TEST(Store, DenseLayersLeaveTheIndexAlone) {
  expect_near_the_reference({.query_heads = 64, .kv_heads = 4, .sparse = false});
}

TEST(Store, E4m3PagesHoldTheValuesOverTheirScalesRoundedOnce) {
  for (const bool scaled : {false, true})
    expect_near_the_reference({.query_heads = 32,
                               .kv_heads = 2,
                               .kv_type = CacheType::kE4M3,
                               .index_type = CacheType::kE4M3,
                               .scaled = scaled});
}

TEST(Store, E4m3Saturates) {
  expect_near_the_reference({.kv_type = CacheType::kE4M3, .scaled = true, .gain = 300});
}

TEST(Store, EachCacheHasATypeOfItsOwn) {
  expect_near_the_reference({.kv_type = CacheType::kE4M3});
  expect_near_the_reference({.index_type = CacheType::kE4M3});
}

TEST(Store, OtherRotaryWidthsAndYarnsFactor) {
  for (const int rotary_dim : {16, 32, 128})
    expect_near_the_reference({.rotary_dim = rotary_dim, .attention_factor = 1.0693147f});
}

TEST(Store, OneRowAndManyRows) {
  for (const int rows : {1, 2, 3, 17, 1000}) expect_near_the_reference({.query_heads = 8, .rows = rows});
}

TEST(Store, IsWithinOneStepOfTheVectorCode) {
  Problem p({.query_heads = 64, .kv_heads = 4});
  StoreRun run(p);
  ASSERT_TRUE(run.launch().ok());
  const std::vector<uint16_t> got = run.q_out.host();
  std::vector<uint16_t> want(got.size());
  const int width = p.c.query_heads * kHeadDim;
  for (int r = 0; r < p.c.rows; ++r)
    std::copy_n(p.projected.begin() + size_t(r) * p.columns, width, want.begin() + size_t(r) * width);
  sparrow::ThreadPool pool(1);
  sparrow::Scratch scratch;
  sparrow::Exec exec{pool, scratch, sparrow::ops::detect_cpu_isa()};
  const Tensor x(want.data(), DType::kBF16, {p.c.rows, width}),
      weight(p.norms.data(), DType::kBF16, {kHeadDim});
  sparrow::ops::head_norm_rope(exec, x, weight, kEps, p.rotary());
  Tally tally;
  for (int r = 0; r < p.c.rows; ++r)
    for (int i = 0; i < width && p.slots[r] >= 0; ++i)
      tally.add(steps_apart(got[size_t(r) * width + i], want[size_t(r) * width + i], 15));
  EXPECT_LE(tally.worst, 1);
  std::printf("%lld of %lld values differ from the vector code\n", static_cast<long long>(tally.different),
              static_cast<long long>(tally.compared));
}

TEST(Store, RowsOfZerosAndNansStayWhatTheyAre) {
  Problem p({.rows = 4});
  p.slots = {3, 140, 7, 200};
  std::fill_n(p.projected.begin(), p.columns, uint16_t{0});
  std::fill_n(p.projected.begin() + p.columns, p.columns, uint16_t{0x7fc0});
  StoreRun run(p);
  ASSERT_TRUE(run.launch().ok());
  const std::vector<uint16_t> q = run.q_out.host();
  const int width = p.c.query_heads * kHeadDim;
  for (int i = 0; i < width; ++i) {
    EXPECT_EQ(from_bf16(q[i]), 0.0f);
    EXPECT_TRUE(std::isnan(from_bf16(q[width + i])));
    EXPECT_TRUE(std::isfinite(from_bf16(q[2 * width + i])));
  }
}

}  // namespace
}  // namespace msa::sm90
