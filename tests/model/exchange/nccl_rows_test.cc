// SPDX-License-Identifier: Apache-2.0
// What ranks exchange over NCCL, with a library that moves bytes between threads and kernels on the host: the
// rows, their sums to the bit in one order whatever the grid, the residual where it belongs, logits, lists
// and ids; and a rank that is lost.
#include "model/exchange/nccl_rows.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>

#include "base/dtype.h"
#include "comm/tree_sum.h"

namespace sparrow {
namespace {

constexpr int kHidden = 8, kVocabulary = 48, kIndexHeads = 4;

using ::testing::HasSubstr;

// On a host, by the letter.
class HostKernels final : public RowKernels {
 public:
  void sum(const PartRows& p, float* sums) override {
    std::vector<std::vector<float>> parts(static_cast<size_t>(p.sources));
    std::vector<const float*> at;
    const int count = p.rows * kHidden;
    for (int s = 0; s < p.sources; ++s) {
      for (int i = 0; i < count; ++i)
        parts[static_cast<size_t>(s)].push_back(
            p.is_f32 ? static_cast<const float*>(p.parts)[s * count + i]
                     : to_float(static_cast<const BFloat16*>(p.parts)[s * count + i]));
      at.push_back(parts[static_cast<size_t>(s)].data());
    }
    tree_sum(at, count, sums);
  }
  // Not a norm, but a row's own: it tells rows, residual and weight from each other.
  void norm(const PartRows& p, const Norm& n) override {
    std::vector<float> sums(static_cast<size_t>(p.rows * kHidden));
    sum(p, sums.data());
    for (size_t i = 0; i < sums.size(); ++i) {
      const float residual =
          n.residual == nullptr ? 0 : to_float(static_cast<const BFloat16*>(n.residual)[i]);
      const BFloat16 x = to_bf16(residual + sums[i]);
      if (n.residual_out != nullptr) static_cast<BFloat16*>(n.residual_out)[i] = x;
      static_cast<BFloat16*>(n.out)[i] =
          to_bf16(to_float(x) * to_float(static_cast<const BFloat16*>(n.weight)[i % kHidden]));
    }
  }
  void pick(const void* rows, int num_rows, const int32_t* list, int count, void* out) override {
    for (int i = 0; i < count; ++i) {
      ASSERT_LT(list[i], num_rows);
      std::memcpy(static_cast<BFloat16*>(out) + i * kHidden,
                  static_cast<const BFloat16*>(rows) + list[i] * kHidden, kHidden * sizeof(BFloat16));
    }
  }
  void copy(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, int rows) override {
    for (int r = 0; r < rows; ++r)
      std::memcpy(static_cast<char*>(to) + to_pitch * static_cast<size_t>(r),
                  static_cast<const char*>(from) + from_pitch * static_cast<size_t>(r), width);
  }
};

struct Bed {
  explicit Bed(const Grid& grid, int rows_of_group, bool f32)
      : shape{.grid = grid,
              .peers = {.hidden = kHidden,
                        .vocabulary = kVocabulary,
                        .max_rows = rows_of_group * grid.dp,
                        .f32_partials = f32,
                        .max_lists = int64_t{rows_of_group} * grid.tp * own_heads(grid)},
              .index_heads = kIndexHeads,
              .own_heads = own_heads(grid)} {}

  static int own_heads(const Grid& grid) { return std::max(kIndexHeads / grid.tp, 1); }
  NcclShape shape;
};

// One rank with memory of its own.
struct Rank {
  Rank(const Bed& bed, const Grid& grid, std::unique_ptr<NcclRanks> made)
      : shape(bed.shape), ranks(std::move(made)) {
    shape.grid = grid;
    const auto all = static_cast<size_t>(shape.peers.max_rows);
    memory.resize(static_cast<size_t>(nccl_bytes(shape)) + Arena::kAlignment);
    partial_f32.resize(all * kHidden);
    partial_bf16.resize(all * kHidden);
    normed.resize(all * kHidden);
    residual.resize(all * kHidden);
    weight.assign(kHidden, to_bf16(2.0f));
    logits.resize(64 * kVocabulary);
    ids.resize(64);
    lists.resize(static_cast<size_t>(shape.peers.max_lists) * ops::cuda::kListWords);
    Arena arena(memory.data());
    rows = std::make_unique<NcclRows>(
        shape, *ranks, kernels, lay_out_nccl(arena, shape),
        NcclRows::Places{.partial = shape.peers.f32_partials ? static_cast<const void*>(partial_f32.data())
                                                             : partial_bf16.data(),
                         .normed = normed.data(),
                         .logits = logits.data(),
                         .ids = ids.data(),
                         .lists = lists.data()});
  }
  void set_partial(int row, const std::function<float(int)>& number) {
    for (int c = 0; c < kHidden; ++c) {
      partial_f32[static_cast<size_t>(row * kHidden + c)] = number(c);
      partial_bf16[static_cast<size_t>(row * kHidden + c)] = to_bf16(number(c));
    }
  }

  NcclShape shape;
  std::unique_ptr<NcclRanks> ranks;
  HostKernels kernels;
  std::vector<std::byte> memory;
  std::vector<float> partial_f32, logits;
  std::vector<BFloat16> partial_bf16, normed, residual, weight;
  std::vector<int32_t> ids;
  std::vector<uint64_t> lists;
  std::unique_ptr<NcclRows> rows;
};

std::string library() {
  return std::string(SPARROW_FAKE_NCCL_DIR) + "/libmoving_nccl.so";
}

// Runs `body` as every rank of the grid, each on its thread.
void on_ranks(const Bed& bed, const std::function<void(Rank&)>& body) {
  const int world = bed.shape.grid.world();
  std::vector<Bytes> told(static_cast<size_t>(world));
  std::barrier<> meeting(world);
  std::vector<std::thread> threads;
  const std::string path = library();
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      Grid grid = bed.shape.grid;
      grid.rank = r;
      auto ranks =
          NcclRanks::join({.grid = grid, .library = path.c_str()}, [&](std::span<const std::byte> mine) {
            told[static_cast<size_t>(r)].assign(mine.begin(), mine.end());
            meeting.arrive_and_wait();
            return Result<std::vector<Bytes>>(told);
          });
      meeting.arrive_and_wait();  // nobody is lost before all are there
      SPARROW_CHECK(ranks.ok());
      Rank rank(bed, grid, std::move(ranks).value());
      body(rank);
      meeting.arrive_and_wait();
    });
  for (std::thread& thread : threads) thread.join();
}

// Numbers whose sums depend on their order.
float part(int rank, int row, int c) {
  return std::ldexp(static_cast<float>((rank * 37 + row * 11 + c * 5) % 61 - 30),
                    (rank * 7 + row + c) % 23 - 11);
}
float start(int group, int row, int c) {
  return static_cast<float>((group * 13 + row * 3 + c) % 17);
}

std::vector<float> expected_sum(const Bed& bed, int first, int count, int row) {
  std::vector<std::vector<float>> parts;
  std::vector<const float*> at;
  for (int r = first; r < first + count; ++r) {
    std::vector<float>& x = parts.emplace_back();
    for (int c = 0; c < kHidden; ++c)
      x.push_back(bed.shape.peers.f32_partials ? part(r, row, c) : to_float(to_bf16(part(r, row, c))));
  }
  for (const auto& x : parts) at.push_back(x.data());
  std::vector<float> sum(kHidden);
  tree_sum(at, kHidden, sum.data());
  return sum;
}

class NcclRowsOf : public ::testing::TestWithParam<std::tuple<Grid, bool>> {
 protected:
  Grid grid() const { return std::get<0>(GetParam()); }
  bool f32() const { return std::get<1>(GetParam()); }

  // One exchange of rows, judged on this rank.
  static void check(const Bed& bed, Rank& rank, NcclRows::Sum sum, const std::vector<int>& step_rows,
                    bool picks) {
    const bool of_all = sum == NcclRows::Sum::kOfAll, for_all = sum == NcclRows::Sum::kOfGroupForAll;
    const auto begin_of = [&](int g) { return std::accumulate(step_rows.begin(), step_rows.begin() + g, 0); };
    const Grid& me = rank.shape.grid;
    const int mine = step_rows[static_cast<size_t>(me.group())];
    // Rows have numbers of all groups'.
    for (int g = 0; g < me.dp; ++g)
      for (int i = 0; i < step_rows[static_cast<size_t>(g)]; ++i)
        if (of_all || g == me.group())
          rank.set_partial(of_all ? begin_of(g) + i : i,
                           [&](int c) { return part(me.rank, begin_of(g) + i, c); });
    for (int i = 0; i < mine; ++i)
      for (int c = 0; c < kHidden; ++c)
        rank.residual[static_cast<size_t>(i * kHidden + c)] = to_bf16(start(me.group(), i, c));
    std::vector<int32_t> wanted;
    std::vector<int> counts;
    for (const int rows : step_rows) {
      counts.push_back(picks ? (rows + 2) / 3 : rows);
      for (int i = 0; i < rows && picks; i += 3) wanted.push_back(i);
    }
    rank.rows->add_norm({.sum = sum,
                         .step_rows = step_rows,
                         .residual = rank.residual.data(),
                         .residual_out = picks ? nullptr : rank.residual.data(),
                         .weight = rank.weight.data(),
                         .rows_wanted = picks ? wanted.data() : nullptr,
                         .rows = counts});
    const bool many = rank.rows->is_many(step_rows);
    for (int g = 0; g < me.dp; ++g) {
      if (!for_all && g != me.group()) continue;
      const int rows = step_rows[static_cast<size_t>(g)];
      for (int i = 0; i < rows; i += picks ? 3 : 1) {
        const std::vector<float> expected =
            expected_sum(bed, of_all ? 0 : g * me.tp, of_all ? me.world() : me.tp, begin_of(g) + i);
        const int at = (for_all ? begin_of(g) : 0) + (picks ? i / 3 : i);
        const bool keeps =
            g == me.group() &&
            (!many || (i >= me.tp_rank() * rows / me.tp && i < (me.tp_rank() + 1) * rows / me.tp));
        for (int c = 0; c < kHidden; ++c) {
          const BFloat16 x = to_bf16(start(g, i, c) + expected[static_cast<size_t>(c)]);
          ASSERT_EQ(to_float(rank.normed[static_cast<size_t>(at * kHidden + c)]),
                    to_float(to_bf16(to_float(x) * 2.0f)))
              << "rank " << me.rank << " row " << i << " of group " << g << " column " << c;
          if (keeps && !picks) {
            ASSERT_EQ(to_float(rank.residual[static_cast<size_t>(i * kHidden + c)]), to_float(x)) << me.rank;
          }
        }
      }
    }
  }
  // Of each kind.
  void check_all(const std::vector<int>& step_rows) {
    using Sum = NcclRows::Sum;
    const Bed bed(grid(), 160, f32());
    on_ranks(bed, [&](Rank& rank) {
      for (const auto sum : {Sum::kOfGroup, Sum::kOfGroupForAll, Sum::kOfAll}) {
        check(bed, rank, sum, step_rows, false);
        if (sum != Sum::kOfGroupForAll) check(bed, rank, sum, step_rows, true);
      }
    });
  }
};

TEST_P(NcclRowsOf, SumsFewRowsInTheOrderOfTheTree) {
  std::vector<int> rows(static_cast<size_t>(grid().dp), 1);
  check_all(rows);
  rows[0] = std::min(3, ops::cuda::few_exchange_rows(grid().world(), grid().dp));
  check_all(rows);
}

TEST_P(NcclRowsOf, SumsManyRowsAndKeepsTheirResidualOnce) {
  std::vector<int> rows(static_cast<size_t>(grid().dp), 1);  // fewer than ranks: some have no share
  rows.back() = 149;
  check_all(rows);
}

TEST_P(NcclRowsOf, BringsLogitsListsAndIdsToTheirPlaces) {
  const Bed bed(grid(), 40, f32());
  const int cols = kVocabulary / grid().tp, rows = 37;
  on_ranks(bed, [&](Rank& rank) {
    const Grid& me = rank.shape.grid;
    rank.rows->connect();
    std::vector<float> mine(static_cast<size_t>(rows * cols));
    for (int i = 0; i < rows * cols; ++i)
      mine[static_cast<size_t>(i)] = static_cast<float>(me.rank * 10000 + i);
    rank.rows->collect_logits(mine.data(), rows, cols);
    for (int i = 0; i < rows * kVocabulary && me.leads_group(); ++i) {
      const int row = i / kVocabulary, place = i % kVocabulary / cols;
      ASSERT_EQ(rank.logits[static_cast<size_t>(i)],
                static_cast<float>((me.rank + place) * 10000 + row * cols + i % cols));
    }

    // A list says whose it is, for which row and head.
    const int own = rank.shape.own_heads;
    const auto first_head = [&](int place) { return place * kIndexHeads / me.tp; };
    const auto word = [](int from, int row, int head, int w) {
      return static_cast<uint64_t>(from * 1000000 + row * 1000 + head * 100 + w);
    };
    std::vector<int> order;
    for (int h = 0; h < own; ++h) order.push_back(first_head(me.tp_rank()) + h);
    for (int h = 0; h < kIndexHeads; ++h)
      if (h < order[0] || h >= order[0] + own) order.push_back(h);
    std::vector<uint64_t> lists;
    for (int row = 0; row < rows; ++row)
      for (const int head : order)
        for (int w = 0; w < ops::cuda::kListWords; ++w) lists.push_back(word(me.rank, row, head, w));
    rank.rows->exchange_lists(lists.data(), rows);
    size_t i = 0;
    for (int place = 0; place < me.tp; ++place)
      for (int row = 0; row < rows; ++row)
        for (int h = 0; h < own; ++h)
          for (int w = 0; w < ops::cuda::kListWords; ++w)
            ASSERT_EQ(rank.lists[i++],
                      word(me.group() * me.tp + place, row, first_head(me.tp_rank()) + h, w));

    const std::vector<int32_t> ids{7, 300 + me.rank, 5};
    rank.rows->hand_out_ids(me.leads_group() ? ids.data() : nullptr, 3);
    if (!me.leads_group()) {
      EXPECT_EQ(rank.ids[1], 300 + me.group() * me.tp);
    }
  });
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(dlopen(library().c_str(), RTLD_NOW), "fake_nccl_left"))(), 0);
}

INSTANTIATE_TEST_SUITE_P(Grids, NcclRowsOf,
                         ::testing::Combine(::testing::Values(Grid{1, 2}, Grid{2, 1}, Grid{4, 1}, Grid{8, 1},
                                                              Grid{2, 4}, Grid{4, 2}, Grid{8, 2}),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           const Grid& grid = std::get<0>(info.param);
                           return strf("TP{}xDP{}_{}", grid.tp, grid.dp,
                                       std::get<1>(info.param) ? "f32" : "bf16");
                         });

TEST(NcclRows, ALostRankIsToldOfAndNobodyWaits) {
  const auto lose =
      reinterpret_cast<void (*)(bool)>(dlsym(dlopen(library().c_str(), RTLD_NOW), "fake_nccl_lose"));
  const Bed bed({.tp = 2}, 4, false);
  on_ranks(bed, [&](Rank& rank) {
    if (rank.shape.grid.rank == 1) return lose(true);  // it says nothing more
    const std::vector<int> rows{1};
    rank.rows->add_norm({.step_rows = rows, .weight = rank.weight.data(), .rows = rows});
    ASSERT_TRUE(rank.ranks->failure());
    EXPECT_THAT(rank.ranks->failure()->message, HasSubstr("remote process exited"));
  });
  lose(false);
}

}  // namespace
}  // namespace sparrow
