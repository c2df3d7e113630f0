// SPDX-License-Identifier: Apache-2.0
#include "model/exchange/exchange_way.h"

#include <bit>
#include <string>

#include "model/sharding.h"
#include "ops/cuda/comm/peers.h"

namespace sparrow {
namespace {

// Sums run over the groups of a grid as over the ranks of one.
constexpr int kMaxGroups = ops::cuda::kMaxPeers;

bool has_groups(const Grid& grid) {
  return grid.dp <= kMaxGroups && std::has_single_bit(static_cast<unsigned>(grid.dp));
}

// "; TP4 x DP4, expert-parallel would do"
std::string ways_out(const ModelConfig& config, const Grid& grid, int node_ranks) {
  std::string text;
  for (const Grid& other : supported_grids(config, grid.world()))
    if (node_ranks % other.tp == 0 && has_groups(other))
      text += strf("{}{}", text.empty() ? "; " : " or ", describe(other));
  return text.empty() ? text : text + " would do";
}

}  // namespace

ExchangeWay exchange_way(const Grid& grid, int num_nodes, bool peer_memory) {
  const bool reached = num_nodes == 1 && grid.world() <= ops::cuda::kMaxPeers;
  return {.nccl = grid.world() > 1 && !(reached && peer_memory), .num_nodes = num_nodes};
}

Status check_exchange(const ModelConfig& config, const Grid& grid, const ExchangeWay& way) {
  const auto refused = [](std::string message) { return Error{Errc::kUnsupported, std::move(message)}; };
  if (way.num_nodes < 1 || grid.world() % way.num_nodes != 0)
    return refused(strf("{}: {} ranks cannot be shared by {} nodes equally", describe(grid), grid.world(),
                        way.num_nodes));
  const int node_ranks = grid.world() / way.num_nodes;
  if (node_ranks % grid.tp != 0)
    return refused(
        strf("{} on {} nodes: a step has two sums a layer over a group's GPUs, which are on one "
             "node, and {} are on each{}",
             describe(grid), way.num_nodes, node_ranks, ways_out(config, grid, node_ranks)));
  if (!way.nccl && grid.world() > ops::cuda::kMaxPeers)
    return refused(strf("{}: at most {} GPUs open each other's memory; more need NCCL", describe(grid),
                        ops::cuda::kMaxPeers));
  if (!has_groups(grid))
    return refused(strf("{}: on GPUs 1, 2, 4 or {} groups run together{}", describe(grid), kMaxGroups,
                        ways_out(config, grid, node_ranks)));
  return Ok{};
}

}  // namespace sparrow
