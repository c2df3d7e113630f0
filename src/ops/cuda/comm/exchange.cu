// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/comm/exchange.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/comm/check_peers.h"
#include "ops/cuda/comm/exchange_few.cuh"
#include "ops/cuda/comm/exchange_many.cuh"
#include "ops/cuda/limits.h"
#include "sm90/launch.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kMaxThreads = kMaxHidden / kVector;
constexpr int kMinFewThreads = 96, kMaxFewThreads = 2 * kMinFewThreads;
static_assert(kMaxHidden / kVector / kMaxFewCluster <= kMaxFewThreads);
constexpr int kSms = 132;  // of an H200

template <typename T, int kSources>
__global__ void __launch_bounds__(kMaxFewThreads, 1) few_kernel(const __grid_constant__ ExchangeArgs p) {
  exchange_few<T, kSources>(p, hopper::cluster_cta(), hopper::cluster_ctas());
}

template <typename T, int kSources>
__global__ void __launch_bounds__(kMaxThreads) many_kernel(const __grid_constant__ ExchangeArgs p) {
  exchange_many<T, kSources>(p);
}

// Calls `launch.operator()<T, kSources>()`.
template <typename T, typename Launch>
void for_sources(int sources, const Launch& launch) {
  switch (sources) {
    case 1:
      return launch.template operator()<T, 1>();
    case 2:
      return launch.template operator()<T, 2>();
    case 4:
      return launch.template operator()<T, 4>();
    default:
      return launch.template operator()<T, 8>();
  }
}

void check(const ExchangeArgs& args) {
  const Arguments arguments("exchange_norm");
  check_peers(arguments, args.peers);
  arguments.range("rows", args.rows, 1, args.many ? INT_MAX : few_exchange_rows(args.peers.size))
      .range("hidden", args.hidden, kColumnTile, kMaxHidden)
      .multiple("hidden", args.hidden, kColumnTile)
      .pointer("partial", args.partial)
      .pointer("weight", args.weight)
      .pointer("out", args.out)
      .range("groups.count", args.groups.count, 1, kMaxPeers);
  if (!args.many) arguments.pointer("peers.mailbox", args.peers.mailbox);
  const int sources = args.groups.sources[0].size();
  const int few_rows = kMailboxRows / args.peers.size;
  for (int g = 0; g < args.groups.count; ++g)
    arguments
        .require("groups.first_row", args.groups.first_row[g] < args.groups.first_row[g + 1],
                 "must give each group a row")
        .require("groups.keepers", args.groups.keepers[g].size() > 0, "must be somebody")
        .require("groups.sources",
                 args.many || sources < args.peers.size ||
                     args.groups.destinations[g].size() == args.groups.keepers[g].size(),
                 "must leave a place for the residual of those who do not keep it")
        .require("groups.first_mailbox_row",
                 args.many || args.groups.first_mailbox_row[g] + args.groups.first_row[g + 1] -
                                      args.groups.first_row[g] <=
                                  few_rows,
                 "must leave room for the group's rows")
        .require("groups.sources",
                 args.groups.sources[g].size() == sources && (sources & (sources - 1)) == 0 && sources > 0,
                 "must be as many for each group, and 1, 2, 4 or 8");
  arguments.require("groups.first_row", args.groups.first_row[args.groups.count] == args.rows,
                    "must end with the rows");
}

// A row's CTAs: more send faster, as long as each has some warps to send with.
int few_cluster(int vectors) {
  int ctas = kMaxFewCluster;
  while (ctas > 1 && vectors / ctas < kMinFewThreads) ctas /= 2;
  return ctas;
}

// Of many: at least one, for the flags.
int most_own_rows(const ExchangeArgs& args) {
  int own = 1;
  for (int g = 0; g < args.groups.count; ++g)
    if (const RankRange& keepers = args.groups.keepers[g];
        keepers.begin <= args.peers.rank && args.peers.rank < keepers.end)
      own = std::max(own, ceil_div(args.groups.first_row[g + 1] - args.groups.first_row[g], keepers.size()));
  return own;
}

}  // namespace

RowGroups one_group(int ranks, int rows) {
  RowGroups groups;
  groups.first_row[1] = rows;
  groups.sources[0] = groups.destinations[0] = groups.keepers[0] = groups.ranks = {0, ranks};
  return groups;
}

void exchange_norm(const ExchangeArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  check(args);
  const int vectors = args.hidden / kVector, sources = args.groups.sources[0].size();
  const auto launch = [&]<typename T, int kSources>() {
    if (!args.many) {
      const int cluster = few_cluster(vectors), threads = round_up(ceil_div(vectors, cluster), 32);
      const hopper::Launch shape{.grid = dim3(args.rows * cluster), .threads = threads, .cluster = cluster};
      SPARROW_CUDA(hopper::launch_dependent(few_kernel<T, kSources>, shape, stream, args));
      return;
    }
    const int ctas = (args.phases & kTake) ? most_own_rows(args) : 1;
    // CTAs that wait must leave room for those of other ranks on the same GPU.
    const int most = args.peers.shared_gpu ? kSms / args.peers.size : 2 * kSms;
    const hopper::Launch shape{.grid = dim3(std::min(ctas, most)), .threads = round_up(vectors, 32)};
    SPARROW_CUDA(hopper::launch_dependent(many_kernel<T, kSources>, shape, stream, args));
  };
  args.f32_partials ? for_sources<float>(sources, launch) : for_sources<__nv_bfloat16>(sources, launch);
}

}  // namespace sparrow::ops::cuda
