// SPDX-License-Identifier: Apache-2.0
// Who am I: which rank of how many this process is, and where the ranks meet. Flags come first, then what a
// launcher left in the environment: torchrun (RANK, WORLD_SIZE, ...), Open MPI, Slurm, PMI, in this order. No
// library of any launcher is needed.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sparrow {

// One rank among all. Ranks of a node are neighbours, and every node has as many.
struct RankPlace {
  int rank = 0, world = 1;
  int local_rank = 0, local_world = 1;  // on this node
  std::string rendezvous;               // host:port of rank 0; empty: this node only
  std::string job;                      // the same on all ranks of a node, for its sockets and memory

  bool operator==(const RankPlace&) const = default;
};

// What the command line says.
struct PlaceFlags {
  int world = 1;                            // of the grid: tp * dp
  std::optional<int> rank, world_size;      // --rank, --world-size: this process is one rank
  std::optional<int> num_nodes, node_rank;  // --nnodes, --node-rank: this process starts a node's ranks
  std::string rendezvous;                   // --rendezvous
};

// What ranks of several nodes need: without a token anybody who reaches the port could be one of them.
Status check_token(const RankPlace& place, std::string_view token);

// Of a variable: nullptr where it is not set, as std::getenv does.
using GetEnv = std::function<const char*(const char*)>;

// Nullopt: nobody started this process as one rank of several; local_places() says which it should start.
// Error: what is set contradicts itself or the grid; one line that names the flag or variable, and its value.
Result<std::optional<RankPlace>> place_of(const PlaceFlags& flags, const GetEnv& getenv);

// The ranks of this node, for a program that starts them itself: all of the grid, or with --nnodes the node's
// share. `job` is the caller's to choose.
Result<std::vector<RankPlace>> local_places(const PlaceFlags& flags, const GetEnv& getenv,
                                            const std::string& job);

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
// "10.0.0.7:29500", "[fe80::1]:29500", "node-0:29500". `name` is that of the flag or variable.
Result<HostPort> parse_host_port(std::string_view text, std::string_view name);

}  // namespace sparrow
