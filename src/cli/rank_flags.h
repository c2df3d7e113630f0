// SPDX-License-Identifier: Apache-2.0
// The flags about several ranks, as given to the commands that can run on them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "comm/grid.h"
#include "comm/launch.h"

namespace sparrow::cli {

struct RankFlags {
  Grid grid;                                // its rank is not known from flags alone: see place_of()
  std::optional<int> num_nodes, node_rank;  // this program starts the ranks of one node of several
  std::optional<int> rank, world_size;      // or it is one of them
  std::string rendezvous;
  std::filesystem::path token_file;
  std::optional<int> join_timeout_seconds;
  bool share_gpu = false;       // several ranks on one GPU, for tests
  bool no_peer_memory = false;  // ranks exchange over NCCL, in a node too

  PlaceFlags place() const;
  // Error: flags about ranks, where the grid has one.
  Status check_alone() const;
  // Error: flags about GPUs, on a device that is none ("auto": not known yet).
  Status check_device(std::string_view device) const;
};

// What ranks prove to each other that they know: the file's, or SPARROW_TOKEN's; "" where there is neither.
// Error: it cannot be read, or is too short to be a secret.
Result<std::string> read_token(const RankFlags& flags, const GetEnv& getenv);

}  // namespace sparrow::cli
