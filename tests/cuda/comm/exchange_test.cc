// SPDX-License-Identifier: Apache-2.0
// Sums of rows over ranks against the host, to the bit: ranks that take turns on one stream, and ranks that
// run at the same time, each on CTAs of its own in one launch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cuda/comm/peer_bed.h"
#include "cuda/comm/together.h"
#include "device/cuda/stream.h"

namespace sparrow::test {
namespace {

using namespace ops::cuda;

void in_turn(const std::vector<ExchangeArgs>& ranks) {
  for (const int phase : {kGive, kTake, kLeave})
    for (ExchangeArgs args : ranks) {
      if (phase == kLeave && !args.many) continue;
      args.phases = phase;
      exchange_norm(args, nullptr);
    }
}

::testing::AssertionResult same_bits(const std::vector<BFloat16>& got, const std::vector<BFloat16>& want,
                                     size_t first) {
  for (size_t i = 0; i < want.size(); ++i)
    if (got[first + i].bits != want[i].bits)
      return ::testing::AssertionFailure()
             << "column " << i << ": got " << to_float(got[first + i]) << ", want " << to_float(want[i]);
  return ::testing::AssertionSuccess();
}

struct Case {
  int size, hidden;
  bool f32;
};
class Exchange : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Exchange,
                         ::testing::Values(Case{2, 256, false}, Case{4, 64, true}, Case{8, 1024, false},
                                           Case{8, 6144, false}, Case{8, 6144, true}, Case{4, 6144, false},
                                           Case{2, 8192, true}));

TEST_P(Exchange, EqualsTheHostInBothFormsForAnyNumberOfRows) {
  const auto [size, hidden, f32] = GetParam();
  constexpr int kMaxRows = 200;
  PeerBed bed(size, hidden, kMaxRows);
  uint32_t seed = 1;
  for (const int rows : {1, 2, 7, 16, 17, 63, 200})
    for (const bool many : {false, true}) {
      if (!many && rows > few_exchange_rows(size)) continue;
      const bool with_residual = rows != 2;
      const Rows input(size, rows, hidden, f32, ++seed);
      std::vector<ExchangeArgs> args;
      for (auto& rank : bed.ranks) {
        rank->upload(input, f32);
        args.push_back(rank->args(rows, f32, many, with_residual));
      }
      in_turn(args);
      for (int r = 0; r < size; ++r) {
        const auto out = bed.ranks[r]->download(args[r].out, size_t(rows) * hidden);
        const auto residual = bed.ranks[r]->download(args[r].residual_out, size_t(rows) * hidden);
        for (int row = 0; row < rows; ++row) {
          const auto want = input.sum(row, {0, size}, with_residual);
          ASSERT_TRUE(same_bits(out, input.norm(want, PeerBedRank::kEps), size_t(row) * hidden))
              << rows << " rows, many " << many << ", rank " << r << ", row " << row;
          if (!many || row % size == r) {
            ASSERT_TRUE(same_bits(residual, want, size_t(row) * hidden)) << row;
          }
        }
      }
    }
}

// Groups of `tp` ranks: rows of a group are summed over it and wanted by all, summed over all and wanted by
// it, or summed over it and wanted by it. Each keeps the residual of its own rows.
enum class Way { kToAll, kFromAll, kWithin };

RowGroups groups_of(int ranks, int tp, Way way, const std::vector<int>& first_row) {
  RowGroups groups;
  groups.count = ranks / tp;
  groups.ranks = {0, ranks};
  for (int g = 0; g < groups.count; ++g) {
    const RankRange group{g * tp, (g + 1) * tp}, all{0, ranks};
    groups.first_row[g + 1] = first_row[g + 1];
    groups.sources[g] = way == Way::kFromAll ? all : group;
    groups.destinations[g] = way == Way::kToAll ? all : group;
    groups.keepers[g] = group;
    groups.first_partial_row[g] = way == Way::kFromAll ? first_row[g] : 0;
    groups.first_out_row[g] = way == Way::kToAll ? first_row[g] : 0;
    groups.first_mailbox_row[g] = g * few_exchange_rows(ranks, groups.count);
  }
  return groups;
}

// What rank r of such a grid has before the exchange: parts of its group's rows at the front, or of all.
void upload_groups(PeerBed& bed, const Rows& input, int tp, Way way, const std::vector<int>& first_row) {
  for (int r = 0; r < static_cast<int>(bed.ranks.size()); ++r) {
    bed.ranks[r]->upload(input, false);
    const int first = first_row[r / tp], hidden = input.hidden;
    const auto from = [&](const std::vector<float>& rows) {
      return as_bf16(std::vector<float>(rows.begin() + int64_t{first} * hidden, rows.end()));
    };
    // Of a residual that it does not keep it has another.
    std::vector<Bf16> residual(input.residual.size(), __float2bfloat16(8.0f));
    const std::vector<Bf16> kept = from(input.residual);
    const int rows = first_row[r / tp + 1] - first;
    std::copy(kept.begin(), kept.begin() + int64_t{rows} * hidden, residual.begin());
    SPARROW_CUDA(cudaMemcpy(bed.ranks[r]->residual.data(), residual.data(), residual.size() * 2,
                            cudaMemcpyHostToDevice));
    if (way == Way::kFromAll) continue;
    const std::vector<Bf16> partial = from(input.partial[r]);
    SPARROW_CUDA(cudaMemcpy(bed.ranks[r]->layout().partial, partial.data(), partial.size() * 2,
                            cudaMemcpyHostToDevice));
  }
}

void expect_groups(const PeerBed& bed, const Rows& input, int tp, Way way, const std::vector<int>& first_row,
                   bool many) {
  const int size = static_cast<int>(bed.ranks.size()), hidden = input.hidden, rows = input.rows;
  for (int r = 0; r < size; ++r) {
    const int own = r / tp;
    const auto out = bed.ranks[r]->download(bed.ranks[r]->layout().out, size_t(rows) * hidden);
    const auto residual = bed.ranks[r]->download(bed.ranks[r]->residual.data(), size_t(rows) * hidden);
    for (int row = 0; row < rows; ++row) {
      int g = 0;
      while (row >= first_row[g + 1]) ++g;
      if (way != Way::kToAll && g != own) continue;
      const RankRange sources = way == Way::kFromAll ? RankRange{0, size} : RankRange{g * tp, (g + 1) * tp};
      const auto want = input.sum(row, sources, true);
      const int at = way == Way::kToAll ? row : row - first_row[g];
      ASSERT_TRUE(same_bits(out, input.norm(want, PeerBedRank::kEps), size_t(at) * hidden))
          << "way " << int(way) << ", many " << many << ", rank " << r << ", row " << row;
      const int in_group = row - first_row[g];
      if (g == own && (!many || in_group % tp == r % tp)) {
        ASSERT_TRUE(same_bits(residual, want, size_t(in_group) * hidden)) << "residual of row " << row;
      }
    }
  }
}

TEST(Exchange, GroupsSumTheirRowsForAllAndAllForThem) {
  constexpr int kHidden = 512;
  const struct {
    int ranks, tp;
    std::vector<int> first_row;
  } grids[] = {{8, 4, {0, 4, 11}}, {8, 4, {0, 8, 9}}, {8, 2, {0, 1, 3, 6, 10}}, {2, 1, {0, 20, 21}}};
  uint32_t seed = 1;
  for (const auto& [ranks, tp, first_row] : grids) {
    const int rows = first_row.back();
    PeerBed bed(ranks, kHidden, rows);
    for (int round = 0; round < 3; ++round)
      for (const bool many : {false, true})
        for (const Way way : {Way::kWithin, Way::kToAll, Way::kFromAll}) {
          const Rows input(ranks, rows, kHidden, false, ++seed);
          upload_groups(bed, input, tp, way, first_row);
          std::vector<ExchangeArgs> args;
          for (const auto& rank : bed.ranks) {
            args.push_back(rank->args(rows, false, many));
            args.back().groups = groups_of(ranks, tp, way, first_row);
          }
          in_turn(args);
          expect_groups(bed, input, tp, way, first_row, many);
        }
  }
}

TEST(Exchange, TakesAListOfRowsAndLeavesTheResidual) {
  constexpr int kSize = 4, kHidden = 256, kRows = 40;
  PeerBed bed(kSize, kHidden, kRows);
  const Rows input(kSize, kRows, kHidden, false, 3);
  const std::vector<int32_t> list = {3, 3, 39, 0, 8, 4};
  const DeviceArray<int32_t> list_device(list);
  for (const bool many : {false, true}) {
    std::vector<ExchangeArgs> args;
    for (auto& rank : bed.ranks) {
      rank->upload(input, false);
      args.push_back(rank->args(int(list.size()), false, many));
      args.back().row_list = list_device.data();
      args.back().residual_out = nullptr;
    }
    in_turn(args);
    for (int r = 0; r < kSize; ++r) {
      const auto out = bed.ranks[r]->download(args[r].out, list.size() * kHidden);
      for (size_t i = 0; i < list.size(); ++i)
        ASSERT_TRUE(
            same_bits(out, input.norm(input.sum(list[i], {0, kSize}, true), PeerBedRank::kEps), i * kHidden))
            << "many " << many << ", rank " << r << ", place " << i;
    }
  }
}

// A word of a mailbox that a rank wants to send may look as if it had not arrived.
TEST(Exchange, NansArrive) {
  constexpr int kSize = 2, kHidden = 64;
  for (const bool f32 : {false, true}) {
    PeerBed bed(kSize, kHidden, 1);
    std::vector<ExchangeArgs> args;
    for (auto& rank : bed.ranks) {
      rank->upload(Rows(kSize, 1, kHidden, f32, 1), f32);
      SPARROW_CUDA(cudaMemset(rank->layout().partial, 0xff, kHidden * sizeof(float)));
      args.push_back(rank->args(1, f32, false));
    }
    in_turn(args);
    for (const BFloat16 x : bed.ranks[0]->download(args[0].out, kHidden)) EXPECT_NE(to_float(x), to_float(x));
    EXPECT_FALSE(bed.memory[0]->missed_rank().has_value());
  }
}

// All ranks at once, replayed from a graph, few and many rows in turn, against ranks in turn.
void replay_and_compare(int size, int rounds) {
  constexpr int kHidden = 512, kMaxRows = 64;
  const std::vector<std::pair<int, bool>> steps = {
      {1, false}, {3, false}, {40, true}, {few_exchange_rows(size) / 2, false}, {2, true}};
  PeerBed together(size, kHidden, kMaxRows), turns(size, kHidden, kMaxRows);
  const Rows input(size, kMaxRows, kHidden, false, 5);
  for (PeerBed* bed : {&together, &turns})
    for (auto& rank : bed->ranks) rank->upload(input, false);
  const auto args_of = [&](PeerBed& bed) {
    std::vector<std::vector<ExchangeArgs>> args;
    for (const auto& [rows, many] : steps) {
      args.emplace_back();
      for (auto& rank : bed.ranks) args.back().push_back(rank->args(rows, false, many));
    }
    return args;
  };
  const auto on_device = [](const std::vector<std::vector<ExchangeArgs>>& args) {
    std::vector<std::unique_ptr<DeviceArray<ExchangeArgs>>> arrays;
    for (const auto& step : args) arrays.push_back(std::make_unique<DeviceArray<ExchangeArgs>>(step));
    return arrays;
  };
  Stream stream;
  const auto args = args_of(together), args_in_turn = args_of(turns);
  const auto arrays = on_device(args), arrays_in_turn = on_device(args_in_turn);
  const Graph graph = Graph::capture(stream, [&] {
    for (size_t s = 0; s < steps.size(); ++s) {
      exchange_together(arrays[s]->data(), args[s][0], stream.get());
      make_next_partials(arrays[s]->data(), args[s][0], stream.get());
    }
  });
  for (int round = 0; round < rounds; ++round) graph.launch(stream.get());
  stream.synchronize();
  for (int round = 0; round < rounds; ++round)
    for (size_t s = 0; s < steps.size(); ++s) {
      in_turn(args_in_turn[s]);
      make_next_partials(arrays_in_turn[s]->data(), args_in_turn[s][0], nullptr);
    }
  for (int r = 0; r < size; ++r) {
    EXPECT_FALSE(together.memory[r]->missed_rank().has_value());
    const size_t count = size_t(steps.back().first) * kHidden;
    const auto want = turns.ranks[r]->download(turns.ranks[r]->layout().out, count);
    EXPECT_TRUE(same_bits(together.ranks[r]->download(together.ranks[r]->layout().out, count), want, 0)) << r;
    float largest = 0;
    for (const BFloat16 x : want) largest = std::max(largest, std::fabs(to_float(x)));
    EXPECT_GT(largest, 0.1f);
  }
}

TEST(Exchange, RanksAtOnceAgreeWithRanksInTurnOverAThousandReplays) {
  for (const int size : {2, 4, 8}) replay_and_compare(size, 1000);
}

TEST(Exchange, WhoWaitsInVainSaysForWhomAndWaitsNoMore) {
  for (const bool many : {false, true}) {
    PeerBed bed(2, 256, 8);
    bed.ranks[0]->upload(Rows(2, 1, 256, false, 1), false);
    ExchangeArgs args = bed.ranks[0]->args(1, false, many);
    args.peers.patience_ns = 20'000'000;
    exchange_norm(args, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(bed.memory[0]->missed_rank(), 1);
    args.peers.patience_ns = 1'000'000'000'000;
    for (int i = 0; i < 100; ++i) exchange_norm(args, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
  }
}

TEST(Exchange, LogitsComeTogetherAndIdsAreHandedOut) {
  constexpr int kSize = 8, kTp = 4, kRows = 5;
  for (const int cols : {96, 33}) {
    PeerBed bed(kSize, 64, 64);
    for (const int phase : {kGive, kTake, kLeave})
      for (int r = 0; r < kSize; ++r) {
        std::vector<float> x(kRows * cols);
        for (size_t i = 0; i < x.size(); ++i) x[i] = float(1000 * r + i);
        const DeviceArray<float> x_device(x);
        const PeerBedLayout at = bed.ranks[r]->layout();
        const RankRange group{r / kTp * kTp, (r / kTp + 1) * kTp};
        collect_columns({bed.ranks[r]->peers(), group, x_device.data(), at.logits, kRows, cols, phase},
                        nullptr);
        SPARROW_CUDA(cudaDeviceSynchronize());
      }
    for (const int phase : {kGive, kTake})
      for (int r = 0; r < kSize; ++r) {
        const DeviceArray<int32_t> ids(std::vector<int32_t>{7 + r, 8 + r, 9 + r});
        const RankRange group{r / kTp * kTp, (r / kTp + 1) * kTp};
        hand_out_ids({bed.ranks[r]->peers(), group, ids.data(), bed.ranks[r]->layout().ids, 3, phase},
                     nullptr);
        SPARROW_CUDA(cudaDeviceSynchronize());
      }
    for (int r = 0; r < kSize; ++r) {
      const PeerBedLayout at = bed.ranks[r]->layout();
      const int first = r / kTp * kTp;
      if (r == first) {
        std::vector<float> all(kRows * kTp * cols);
        SPARROW_CUDA(cudaMemcpy(all.data(), at.logits, all.size() * 4, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < all.size(); ++i) {
          const size_t row = i / (kTp * cols), rank = i / cols % kTp, col = i % cols;
          ASSERT_EQ(all[i], float(1000 * (first + rank) + row * cols + col));
        }
      } else {
        std::vector<int32_t> ids(3);
        SPARROW_CUDA(cudaMemcpy(ids.data(), at.ids, 12, cudaMemcpyDeviceToHost));
        EXPECT_EQ(ids, (std::vector<int32_t>{7 + first, 8 + first, 9 + first}));
      }
    }
  }
}

}  // namespace
}  // namespace sparrow::test
