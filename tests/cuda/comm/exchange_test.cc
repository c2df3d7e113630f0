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

// Two groups of four: rows of a group are summed over it and wanted by all, or the other way round.
TEST(Exchange, SourcesAndDestinationsMayDiffer) {
  constexpr int kSize = 8, kTp = 4, kHidden = 512, kRows = 11, kFirst[] = {0, 4, kRows};
  PeerBed bed(kSize, kHidden, kRows);
  for (const bool many : {false, true})
    for (const bool to_all : {true, false}) {
      const Rows input(kSize, kRows, kHidden, false, many + 2 * to_all);
      std::vector<ExchangeArgs> args;
      for (int r = 0; r < kSize; ++r) {
        bed.ranks[r]->upload(input, false);
        ExchangeArgs a = bed.ranks[r]->args(kRows, false, many);
        a.groups.count = 2;
        for (int g = 0; g < 2; ++g) {
          a.groups.first_row[g + 1] = kFirst[g + 1];
          const RankRange group{g * kTp, (g + 1) * kTp}, all{0, kSize};
          a.groups.sources[g] = to_all ? group : all;
          a.groups.destinations[g] = to_all ? all : group;
        }
        args.push_back(a);
      }
      in_turn(args);
      for (int r = 0; r < kSize; ++r) {
        const auto out = bed.ranks[r]->download(args[r].out, size_t(kRows) * kHidden);
        for (int row = 0; row < kRows; ++row) {
          const int g = row >= kFirst[1];
          if (!to_all && r / kTp != g) continue;
          const auto want = input.sum(row, args[0].groups.sources[g], true);
          ASSERT_TRUE(same_bits(out, input.norm(want, PeerBedRank::kEps), size_t(row) * kHidden))
              << "many " << many << ", to all " << to_all << ", rank " << r << ", row " << row;
        }
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
