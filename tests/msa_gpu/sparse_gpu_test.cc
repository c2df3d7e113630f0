// SPDX-License-Identifier: Apache-2.0
// A whole sparse layer at once must leave the bits that store(), index() and attend() leave one after
// another, each of which is held against the reference elsewhere: all that is written, pages included.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "model/rotary.h"
#include "msa_gpu/late_write.h"
#include "msa_gpu/plan_case.h"

namespace msa::sm90 {
namespace {

using gpu::CacheType;
using gpu::Plan;
using gpu::Status;

enum class Keys { kRandom, kRepeated, kBestInOneColumn };

struct SparseCase {
  std::vector<int> lens;  // 0: a padding request
  int query_heads = 8, kv_heads = 1;
  Selection selection;
  CacheType kv_type = CacheType::kBF16, index_type = CacheType::kBF16;
  Keys keys = Keys::kRandom;
  int rotary_dim = 64;
  int spare_columns = 3;
  bool late = false;  // the projections come while the layer may have started
  bool batch_invariant = false;
};

uint16_t bf16_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

struct SparseProblem {
  SparseCase c;
  int rows, columns, table_width = 0, num_pages;
  std::vector<uint16_t> projected, norms;
  std::vector<int32_t> positions, seq_lens, table;
  std::vector<int64_t> slots;
  std::vector<float> scales;
  std::vector<uint8_t> kv_pages, index_pages;
  sparrow::RotaryFrequencies frequencies;

  explicit SparseProblem(const SparseCase& made) : c(made), rows(static_cast<int>(c.lens.size())) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    columns = (c.query_heads + 3 * c.kv_heads + 1) * kHeadDim + 8;
    projected.resize(size_t(rows) * columns);
    for (auto& x : projected) x = bf16_of(3 * normal(rng));
    norms.resize(4 * kHeadDim);
    for (auto& x : norms) x = bf16_of(0.3f * normal(rng));
    for (int i = 0; i < 2 * c.kv_heads; ++i) scales.push_back(0.03f * (i + 1));
    sparrow::RopeConfig rope;
    rope.rotary_dim = c.rotary_dim;
    frequencies = sparrow::rotary_frequencies(rope);
    seq_lens = c.lens;
    make_table(rng);
    make_pages(rng);
  }

  // Requests share pages, but not the one they write to.
  void make_table(std::mt19937& rng) {
    for (const int len : c.lens) table_width = std::max(table_width, (len + kBlock - 1) / kBlock);
    const int shared = std::min(table_width * 2, 1100);
    table_width += c.spare_columns;
    num_pages = shared + rows;
    std::vector<int32_t> order(shared);
    std::iota(order.begin(), order.end(), 0);
    table.assign(size_t(rows) * table_width, -1);
    for (int r = 0; r < rows; ++r) {
      std::shuffle(order.begin(), order.end(), rng);
      const int own = c.lens[r] > 0 ? (c.lens[r] - 1) / kBlock : -1;
      for (int b = 0; b <= own; ++b) table[r * table_width + b] = b == own ? shared + r : order[b];
      positions.push_back(std::max(c.lens[r] - 1, 0));
      slots.push_back(own < 0 ? -1 : int64_t{shared + r} * kBlock + (c.lens[r] - 1) % kBlock);
    }
  }

  void make_pages(std::mt19937& rng) {
    std::vector<uint16_t> noise(1 << 16);
    std::normal_distribution<float> normal;
    for (auto& x : noise) x = bf16_of(normal(rng));
    const auto fill = [&](std::vector<uint8_t>& pages, CacheType type, size_t elements, uint32_t state) {
      pages.resize(elements * (type == CacheType::kE4M3 ? 1 : 2));
      for (size_t i = 0; i < elements; ++i) {
        state = state * 1664525 + 1013904223;
        if (type == CacheType::kE4M3)
          pages[i] = (state >> 24 & 0x7f) == 0x7f ? 0 : static_cast<uint8_t>(state >> 24);
        else
          std::memcpy(&pages[2 * i], &noise[state >> 16], 2);
      }
    };
    fill(kv_pages, c.kv_type, size_t(num_pages) * c.kv_heads * 2 * kBlock * kHeadDim, 1);
    fill(index_pages, c.index_type, size_t(num_pages) * kBlock * kHeadDim, 2);
    const size_t page = index_pages.size() / num_pages;
    // By the first request's blocks: three kinds of them, or every 32nd larger by a factor of 8.
    for (int b = 0; b < table_width && c.keys != Keys::kRandom && table[b] >= 0; ++b) {
      uint8_t* to = &index_pages[table[b] * page];
      if (c.keys == Keys::kRepeated) std::memmove(to, &index_pages[table[b % 3] * page], page);
      if (c.keys != Keys::kBestInOneColumn || b % 32 != 5) continue;
      for (size_t i = 0; i < page; i += 2) {
        uint16_t bits;
        std::memcpy(&bits, to + i, 2);
        bits += 3 << 7;
        std::memcpy(to + i, &bits, 2);
      }
    }
  }
};

struct Written {
  std::vector<uint16_t> q, index_q, out;
  std::vector<int32_t> selected;
  std::vector<uint8_t> kv_pages, index_pages;
};

struct SparseRun {
  const SparseProblem& p;
  Device<uint16_t> projected, norms, q_out, index_q_out, out;
  Device<int32_t> positions, seq_lens, table, selected;
  Device<int64_t> slots;
  Device<float> scales;
  Device<uint8_t> kv_pages, index_pages;
  std::unique_ptr<Plan> plan;

  explicit SparseRun(const SparseProblem& from)
      : p(from),
        projected(p.projected),
        norms(p.norms),
        q_out(size_t(p.rows) * p.c.query_heads * kHeadDim),
        index_q_out(size_t(p.rows) * p.c.kv_heads * kHeadDim),
        out(q_out.count),
        positions(p.positions),
        seq_lens(p.seq_lens),
        table(p.table),
        selected(size_t(p.rows) * p.c.kv_heads * p.c.selection.top_k),
        slots(p.slots),
        scales(p.scales),
        kv_pages(p.kv_pages),
        index_pages(p.index_pages) {
    gpu::PlanConfig config;
    config.heads = {p.c.query_heads, p.c.kv_heads};
    config.selection = p.c.selection;
    config.kv_type = p.c.kv_type, config.index_type = p.c.index_type;
    config.max_requests = config.max_queries = p.rows;
    config.max_blocks = p.table_width;
    config.rotary_dim = p.c.rotary_dim;
    config.inv_freq = p.frequencies.inv_freq;
    config.batch_invariant = p.c.batch_invariant;
    const Status status = Plan::create(config, &plan);
    EXPECT_TRUE(status.ok()) << status.message;
    poison();
  }

  void poison() { q_out.poison(), index_q_out.poison(), out.poison(), selected.poison(); }

  Status prepare() {
    gpu::Step step;
    step.decode = {.num_requests = p.rows,
                   .total_queries = p.rows,
                   .max_queries = 1,
                   .seq_lens = seq_lens.data,
                   .block_table = table.data,
                   .max_blocks = p.table_width};
    step.positions = positions.data;
    return plan->prepare(step, nullptr);
  }

  gpu::SparseArgs args() const {
    int column = 0;
    const auto next = [&](int heads) {
      const gpu::StoreArgs::Rows rows{projected.data + column, p.columns};
      column += heads * kHeadDim;
      return rows;
    };
    gpu::SparseArgs args;
    gpu::StoreArgs& s = args.store;
    s.q = next(p.c.query_heads), s.k = next(p.c.kv_heads), s.v = next(p.c.kv_heads);
    s.index_q = next(p.c.kv_heads), s.index_k = next(1);
    s.q_norm = norms.data, s.k_norm = norms.data + kHeadDim;
    s.index_q_norm = norms.data + 2 * kHeadDim, s.index_k_norm = norms.data + 3 * kHeadDim;
    s.slots = slots.data;
    s.kv_scales = p.c.kv_type == CacheType::kE4M3 ? scales.data : nullptr;
    s.q_out = q_out.data, s.index_q_out = index_q_out.data;
    s.kv_pages = kv_pages.data, s.index_pages = index_pages.data;
    args.num_blocks = p.num_pages, args.selected = selected.data, args.out = out.data;
    return args;
  }

  Status one_by_one() {
    const gpu::SparseArgs a = args();
    if (Status s = plan->store(a.store, nullptr); !s.ok()) return s;
    const gpu::IndexArgs index{a.store.index_q_out, a.store.index_pages, a.num_blocks, a.selected};
    if (Status s = plan->index(index, nullptr); !s.ok()) return s;
    return plan->attend({.q = a.store.q_out,
                         .kv_pages = a.store.kv_pages,
                         .num_blocks = a.num_blocks,
                         .kv_scales = a.store.kv_scales,
                         .selected = a.selected,
                         .out = a.out},
                        nullptr);
  }

  Written written() const {
    return {q_out.host(),    index_q_out.host(), out.host(),
            selected.host(), kv_pages.host(),    index_pages.host()};
  }
};

void expect_equal(const Written& got, const Written& want, const std::string& what) {
  EXPECT_EQ(got.selected, want.selected) << what;
  EXPECT_TRUE(got.q == want.q) << what;
  EXPECT_TRUE(got.index_q == want.index_q) << what;
  EXPECT_TRUE(got.kv_pages == want.kv_pages) << what;
  EXPECT_TRUE(got.index_pages == want.index_pages) << what;
  EXPECT_TRUE(got.out == want.out) << what;
}

// Runs both ways from the same memory, the layer at once twice.
void check(const SparseCase& c, Written* result = nullptr) {
  const SparseProblem p(c);
  SparseRun separate(p), together(p);
  ASSERT_OK(separate.prepare());
  ASSERT_OK(separate.one_by_one());
  ASSERT_CUDA(cudaDeviceSynchronize());
  const Written want = separate.written();
  ASSERT_OK(together.prepare());
  const Device<uint16_t> source(p.projected);
  for (int repeat = 0; repeat < 2; ++repeat) {
    together.poison();
    if (c.late) {
      together.projected.poison();
      ASSERT_CUDA(cudaDeviceSynchronize());
      ASSERT_CUDA(write_late(together.projected.data, source.data, source.count * 2, nullptr));
    }
    ASSERT_OK(together.plan->sparse(together.args(), nullptr));
    ASSERT_CUDA(cudaDeviceSynchronize());
    expect_equal(together.written(), want,
                 std::to_string(p.rows) + " rows, table of " + std::to_string(p.table_width) + ", repeat " +
                     std::to_string(repeat));
  }
  if (result != nullptr) *result = want;
}

TEST(Sparse, OneRowAtEveryCornerLength) {
  for (const int len : {1, 16, 17, 127, 128, 129, 2046, 2047, 2048, 2049, 2050, 4096, 4097, 32768})
    for (const int spare : {0, 3, 60}) check({.lens = {len}, .spare_columns = spare});
}

TEST(Sparse, LongContexts) {
  for (const int len : {65'537, 131'071, 131'072}) check({.lens = {len}, .spare_columns = 0});
  check({.lens = {131'073}, .spare_columns = 0});  // wider than attention selects from
}

TEST(Sparse, SeveralRowsWithPaddingAmongThem) {
  check({.lens = {2049, 0, 1, 5000}});
  check({.lens = {0}});
  check({.lens = {0, 0, 2100}});
  for (const int rows : {2, 3, 4, 5, 16, 70}) {
    std::vector<int> lens(rows);
    for (int r = 0; r < rows; ++r) lens[r] = r % 5 == 3 ? 0 : 1 + r * 977 % 6000;
    check({.lens = lens});
  }
}

// Every block is seen: nothing is scored, and attention starts with the keys of earlier steps.
TEST(Sparse, ManyRowsThatSeeAllOfTheirBlocks) {
  for (const int rows : {2, 9, 70, 140}) {
    std::vector<int> lens(rows);
    for (int r = 0; r < rows; ++r) lens[r] = r % 7 == 3 ? 0 : 1 + r * 619 % 2048;
    check({.lens = lens, .spare_columns = 0});
    check({.lens = lens, .spare_columns = 0, .late = true});
  }
}

TEST(Sparse, LinesLongEnoughForTickets) {
  check({.lens = std::vector<int>(4, 60'001)});
  check({.lens = std::vector<int>(12, 30'001)});
}

TEST(Sparse, EveryHeadShape) {
  for (const int kv_heads : {1, 2, 4})
    for (const int group : {4, 8, 16})
      for (const int rows : {1, 2, 3})
        check({.lens = std::vector<int>(rows, 2500), .query_heads = kv_heads * group, .kv_heads = kv_heads});
}

TEST(Sparse, E4m3Caches) {
  for (const CacheType kv : {CacheType::kBF16, CacheType::kE4M3})
    for (const CacheType index : {CacheType::kBF16, CacheType::kE4M3})
      for (const int len : {129, 2048, 2049, 9000, 70'000})
        check({.lens = {len, 3000}, .kv_type = kv, .index_type = index});
}

TEST(Sparse, EverySelectionRule) {
  for (const int top_k : {1, 4, 16})
    for (const int local : {0, 1, 3})
      for (const int init : {0, 2})
        for (const int len : {300, 5000})
          check({.lens = {1, 129, 2049, len}, .selection = {top_k, local, init}});
}

TEST(Sparse, EveryRotaryWidth) {
  for (const int dim : {16, 32, 64, 128}) check({.lens = {2500, 130}, .rotary_dim = dim});
}

TEST(Sparse, BestBlocksInOneColumn) {
  for (const int len : {4000, 100'000}) check({.lens = {len}, .keys = Keys::kBestInOneColumn});
}

// Three scores only: nearly every comparison is a tie, which the lower id wins.
TEST(Sparse, TiesAreDecidedAsTheReferenceDecidesThem) {
  for (const int len : {2049, 2500, 20'000, 131'072}) {
    SparseCase c{.lens = {len}, .keys = Keys::kRepeated};
    Written got;
    check(c, &got);
    const SparseProblem p(c);
    const int32_t cu[2] = {0, 1};
    const msa::Plan plan{1, cu, p.seq_lens.data(), p.table.data(), p.table_width};
    std::vector<int32_t> want(c.selection.top_k, -1);
    reference::index(plan, {.heads = {1, 1},
                            .selection = c.selection,
                            .q = got.index_q.data(),
                            .k_pages = got.index_pages.data(),
                            .selected = want.data()});
    EXPECT_EQ(got.selected, want);
  }
}

// What runs before the wait must not read the projections.
TEST(Sparse, ProjectionsThatComeLate) {
  for (const int len : {100, 2048, 2049, 9000, 40'000, 131'072}) check({.lens = {len}, .late = true});
  check({.lens = std::vector<int>(9, 3000), .late = true});
}

TEST(Sparse, BatchInvariantKeepsItsKernels) {
  check({.lens = {2049, 0, 1, 5000}, .batch_invariant = true});
}

TEST(Sparse, NeedsTheIndex) {
  const SparseProblem p({.lens = {300}});
  SparseRun run(p);
  ASSERT_OK(run.prepare());
  gpu::SparseArgs args = run.args();
  args.store.index_q.data = nullptr;
  EXPECT_EQ(run.plan->sparse(args, nullptr).message, "store.index_q must not be null");
  args = run.args();
  args.selected = nullptr;
  EXPECT_EQ(run.plan->sparse(args, nullptr).message, "selected must not be null");
}

}  // namespace
}  // namespace msa::sm90
