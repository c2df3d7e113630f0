// SPDX-License-Identifier: Apache-2.0
// What the experts of few rows keep beside their values: both products may be one launch, whose CTAs wait for
// each other over a word of the workspace; and pairs that are not there hit no expert, in either family.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <vector>

#include "cuda/ops/moe/moe_layer.cuh"
#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/moe/launch.cuh"
#include "ops/cuda/moe/many/route_many.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

struct Poison {
  uint4* data;
  int64_t count;
};

// Writes NaN, and lets the next kernel start at once.
__global__ void poison_kernel(Poison p) {
  hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count;
       i += int64_t{gridDim.x} * blockDim.x)
    p.data[i] = {~0u, ~0u, ~0u, ~0u};
}

// Hidden rows of an earlier launch would go unnoticed in the workspace: they are poisoned before each one.
TEST(MoeFew, LaunchesOfAnyNumberOfRowsFollowEachOtherOnOneWorkspace) {
  const std::vector<int> rows = {1, 64, 2, 1, 8, 9, 1, 33, 3, 16, 64, 1};
  for (const MoeShape& shape : {kRank, kTiny, kSmall, kOdd}) {
    Layer layer(shape, 64);
    std::vector<std::vector<__nv_bfloat16>> want;
    for (const int r : rows) want.push_back(layer.run(r));
    const size_t row = shape.hidden, rounds = 8, launches = rows.size() * rounds;
    Device<__nv_bfloat16> out(launches * 64 * row);
    for (const bool overlapped : {false, true}) {
      out.poison();
      for (size_t i = 0; i < launches; ++i) {
        MoeArgs args = layer.args(rows[i % rows.size()]);
        args.out = out.data + i * 64 * row;
        const Poison poison{reinterpret_cast<uint4*>(layer.workspace.data + kMoeBarrierBytes),
                            int64_t(layer.workspace.count - kMoeBarrierBytes) / 16};
        if (overlapped)
          SPARROW_CUDA(hopper::launch_dependent(poison_kernel, {dim3(20), 256}, nullptr, poison));
        else
          poison_kernel<<<20, 256>>>(poison);
        moe(shape, args, nullptr);
        if (!overlapped) SPARROW_CUDA(cudaDeviceSynchronize());
      }
      SPARROW_CUDA(cudaDeviceSynchronize());
      const std::vector<__nv_bfloat16> all = out.download();
      for (size_t i = 0; i < launches; ++i) {
        const size_t count = rows[i % rows.size()] * row;
        EXPECT_EQ(std::memcmp(all.data() + i * 64 * row, want[i % rows.size()].data(), count * 2), 0)
            << "hidden " << shape.hidden << ", launch " << i << (overlapped ? ", overlapped" : "");
      }
    }
  }
}

// Rows past those for which moe() picks it, too.
TEST(MoeFew, OneLaunchHasTheBitsOfTwo) {
  for (const MoeShape& shape : {kRank, kTiny, kSmall, kOdd}) {
    Layer layer(shape, 16);
    const auto want = layer.run(16);  // two launches
    for (const int rows : {1, 2, 3, 5, 8}) {
      layer.out.poison();
      layer.poison_workspace();
      moe_one_launch(shape, layer.args(rows), nullptr);
      EXPECT_TRUE(same_bits(want, layer.out.download(), size_t(rows) * shape.hidden))
          << "hidden " << shape.hidden << ", " << rows << " rows";
    }
  }
}

// The pairs of the rows from `real` on are not there.
std::vector<int32_t> with_padding(const Layer& layer, int real, int rows) {
  std::vector<int32_t> ids = layer.ids.download();
  std::fill(ids.begin() + real * layer.shape.top_k, ids.begin() + rows * layer.shape.top_k, -1);
  return ids;
}

class MoePaddingTest : public testing::TestWithParam<bool> {};  // batch-invariant
INSTANTIATE_TEST_SUITE_P(Families, MoePaddingTest, testing::Bool());

TEST_P(MoePaddingTest, RowsHaveTheBitsOfACallWithoutPadding) {
  const bool batch_invariant = GetParam();
  for (const MoeShape& shape : {kRank, kTiny, kOdd}) {
    Layer layer(shape, 300);
    for (const auto& [real, rows] :
         {std::pair{1, 2}, {1, 8}, {3, 8}, {5, 16}, {9, 12}, {40, 64}, {90, 300}}) {
      // A call without padding belongs to the same family as one with it.
      if (!batch_invariant && moe_few_fits(shape, real) != moe_few_fits(shape, rows)) continue;
      layer.set_inputs(7, Routing::kRandom);
      const auto want = layer.run(real, batch_invariant);
      layer.ids.upload(with_padding(layer, real, rows));
      SPARROW_CUDA(cudaMemset(layer.x.data + size_t(real) * shape.hidden, 0xff,
                              size_t(rows - real) * shape.hidden * 2));
      EXPECT_TRUE(same_bits(want, layer.run(rows, batch_invariant), size_t(real) * shape.hidden))
          << "hidden " << shape.hidden << ", " << real << " of " << rows << " rows";
    }
  }
}

TEST_P(MoePaddingTest, ARowMayHaveSomeOfItsPairs) {
  for (const MoeShape& shape : {kRank, kTiny, kOdd}) {
    Layer layer(shape, 200);
    std::vector<int32_t> ids = layer.ids.download();
    for (size_t i = 0; i < ids.size(); ++i)
      if (i % 3 == 1 || i / shape.top_k % 5 == 2) ids[i] = i % 2 == 0 ? -1 : -0x7fffffff;
    layer.ids.upload(ids);
    for (const int rows : {1, 3, 8, 9, 64, 200})
      EXPECT_LT(layer.error(rows, layer.run(rows, GetParam())), kManyTolerance)
          << "hidden " << shape.hidden << ", " << rows << " rows";
  }
}

TEST_P(MoePaddingTest, NobodyIsThere) {
  Layer layer(kOdd, 100);
  layer.ids.upload(std::vector<int32_t>(layer.ids.count, -1));
  for (const int rows : {1, 8, 9, 64, 100})
    EXPECT_LT(layer.error(rows, layer.run(rows, GetParam())), kManyTolerance) << rows << " rows";
}

struct RouteFewArgs {
  const int32_t* ids;
  int32_t* experts;  // [0]: how many shares, then each one's expert
  int rows, num_experts, top_k;
  int32_t* first = nullptr;  // of each share's places; then how many there are
  int32_t* pair_at = nullptr;
};

template <typename Route>
__global__ void route_few_kernel(RouteFewArgs a) {
  __shared__ Route route;
  route_few(route, a.ids, a.rows, a.num_experts, a.top_k);
  for (int i = threadIdx.x; i < route.num_shares; i += blockDim.x) {
    a.experts[1 + i] = route.shares[i].expert;
    if (a.first) a.first[2 * i] = route.shares[i].first, a.first[2 * i + 1] = route.shares[i].count;
  }
  for (int i = threadIdx.x; a.pair_at && i < a.rows * (a.top_k + 1); i += blockDim.x)
    a.pair_at[i] = route.pair_at[i];
  if (threadIdx.x == 0) a.experts[0] = route.num_shares;
}

// Both products sort for themselves: places ascend by expert, then by row, for any size of the block.
TEST(MoeRoute, PlacesOfFewRowsAreSorted) {
  constexpr int kTopK = 4;
  std::mt19937 random(5);
  const auto expect_sorted = [&]<typename Route>(int rows, int num_experts, int likely, int threads) {
    const int pairs = rows * kTopK;
    std::vector<int32_t> ids(pairs);
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % (likely + 1)) - (random() % 7 == 0 ? likely + 1 : 0);
    Device<int32_t> device_ids(pairs), experts(400), first(800), pair_at(400);
    device_ids.upload(ids);
    pair_at.poison();
    route_few_kernel<Route>
        <<<1, threads>>>({device_ids.data, experts.data, rows, num_experts, kTopK, first.data, pair_at.data});
    std::vector<int32_t> want;  // pairs in the order of their places
    std::vector<std::array<int32_t, 3>> want_shares;
    for (int e = 0; e <= num_experts; ++e) {
      const int begin = e < num_experts ? static_cast<int>(want.size()) : pairs;
      if (e == num_experts) want.resize(pairs, -1);
      if (e < num_experts) {
        for (int p = 0; p < pairs; ++p)
          if (ids[p] == e) want.push_back(p);
      } else {
        for (int r = 0; r < rows; ++r) want.push_back(pairs + r);
      }
      const int end = static_cast<int>(want.size());
      for (int at = begin; at < end; at += Route::kTokens)
        want_shares.push_back({e, at, std::min(Route::kTokens, end - at)});
    }
    const std::vector<int32_t> got_experts = experts.download(), got_first = first.download();
    std::vector<int32_t> got = pair_at.download();
    got.resize(want.size());
    for (size_t i = 0; i < want.size(); ++i)
      if (want[i] < 0) got[i] = -1;  // a place that nobody has
    SCOPED_TRACE(testing::Message() << rows << " rows, " << num_experts << " experts, " << likely + 1
                                    << " likely, " << threads << " threads, shares of " << Route::kTokens);
    EXPECT_EQ(got, want);
    std::vector<std::array<int32_t, 3>> shares;
    for (int i = 0; i < got_experts[0]; ++i)
      shares.push_back({got_experts[1 + i], got_first[2 * i], got_first[2 * i + 1]});
    EXPECT_EQ(shares, want_shares);
  };
  for (const int threads : {128, 288, 608})
    for (const int rows : {8, 9, 16, 17, 33, 64})
      for (const auto& [num_experts, likely] :
           {std::pair{128, 127}, {256, 255}, {60, 59}, {100, 1}, {128, 0}}) {
        if (rows <= RouteFew<8>::kMaxRows)
          expect_sorted.operator()<RouteFew<8>>(rows, num_experts, likely, threads);
        expect_sorted.operator()<RouteFew<8, kFewRows>>(rows, num_experts, likely, threads);
        expect_sorted.operator()<RouteFew<16>>(rows, num_experts, likely, threads);
      }
}

// What is no share reads no weights.
TEST(MoeRoute, OnlyPairsThatAreThereHitAnExpert) {
  Layer layer({128, 128, 60, 4}, 64);
  Device<int32_t> experts(400), row_at(400), place_of(400), num_shares(1);
  Device<Share> shares(400);
  for (const auto& [real, rows] : {std::pair{0, 1}, {1, 8}, {5, 8}, {5, 16}, {9, 12}, {40, 64}, {64, 64}}) {
    layer.set_inputs(9, Routing::kRandom);
    const std::vector<int32_t> ids = with_padding(layer, real, rows);
    layer.ids.upload(ids);
    std::set<int32_t> want(ids.begin(), ids.begin() + real * 4);
    want.insert(60);  // the shared expert
    const auto expect_few = [&]<typename Route>() {
      if (rows > Route::kMaxRows) return;
      experts.poison();
      route_few_kernel<Route><<<1, 288>>>({layer.ids.data, experts.data, rows, 60, 4});
      const std::vector<int32_t> hit = experts.download();
      EXPECT_EQ(std::set<int32_t>(hit.begin() + 1, hit.begin() + 1 + hit[0]), want) << real << " of " << rows;
    };
    expect_few.operator()<RouteFew<8>>();
    expect_few.operator()<RouteFew<8, kFewRows>>();
    expect_few.operator()<RouteFew<16>>();
    shares.poison();
    SPARROW_CUDA(hopper::launch_dependent(route_many_kernel, {dim3(RouteMany::kCluster), RouteMany::kThreads},
                                          nullptr,
                                          RouteManyParams{.ids = layer.ids.data,
                                                          .row_at = row_at.data,
                                                          .place_of = place_of.data,
                                                          .shares = shares.data,
                                                          .num_shares = num_shares.data,
                                                          .rows = rows,
                                                          .num_experts = 60,
                                                          .top_k = 4,
                                                          .share_tokens = 160}));
    const std::vector<Share> tiles = shares.download();
    std::set<int32_t> hit_many;
    for (int i = 0; i < num_shares.download()[0]; ++i) hit_many.insert(tiles[i].expert);
    EXPECT_EQ(hit_many, want) << real << " of " << rows;
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
