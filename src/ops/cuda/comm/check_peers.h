// SPDX-License-Identifier: Apache-2.0
// What every launcher of this folder demands of its peers.
#pragma once

#include "device/cuda/arguments.h"
#include "ops/cuda/comm/peers.h"

namespace sparrow::ops::cuda {

inline void check_peers(const Arguments& arguments, const Peers& peers) {
  arguments.range("peers.size", peers.size, 1, kMaxPeers).range("peers.rank", peers.rank, 0, peers.size - 1);
  for (int r = 0; r < peers.size; ++r) arguments.pointer("peers.memory", peers.memory[r], 256);
}

}  // namespace sparrow::ops::cuda
