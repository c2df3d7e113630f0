// SPDX-License-Identifier: Apache-2.0
// ExchangeWay: how ranks on GPUs exchange rows: over memory that the GPUs of a node open from each other, or
// as messages of NCCL. All ranks come to the same one by themselves, from grid, nodes and flags, and are
// refused at the door where these differ.
#pragma once

#include "base/result.h"
#include "comm/grid.h"
#include "config/config.h"

namespace sparrow {

struct ExchangeWay {
  bool nccl = false;
  int num_nodes = 1;

  bool operator==(const ExchangeWay&) const = default;
};

// NCCL where ranks are on several nodes, where they are more than kernels reach, and where `peer_memory` is
// not wanted.
ExchangeWay exchange_way(const Grid& grid, int num_nodes, bool peer_memory);

// Error: GPUs do not run the grid that way; says which they would.
Status check_exchange(const ModelConfig& config, const Grid& grid, const ExchangeWay& way);

}  // namespace sparrow
