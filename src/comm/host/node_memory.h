// SPDX-License-Identifier: Apache-2.0
// NodeMemory: what lies where in the memory that a node's ranks share. Sizes are generous: pages that nobody
// touches cost nothing.
#pragma once

#include <cstddef>

#include "comm/host/host_comm.h"
#include "comm/load_pacer.h"
#include "comm/shared/ring.h"

namespace sparrow {

struct NodeMemory {
  static constexpr size_t kRing = size_t{4} << 20;       // messages to the node's ranks
  static constexpr size_t kReplyRing = size_t{1} << 20;  // from each of them to rank 0
  static constexpr int kPacedFiles = 1 << 14;            // of a checkpoint

  int world = 1, local_world = 1;

  size_t ring() const { return 0; }
  size_t reply_ring(int local) const {
    return Ring::bytes_for(kRing) + static_cast<size_t>(local) * Ring::bytes_for(kReplyRing);
  }
  // A communicator of that kind (0 group, 1 across, 2 world) whose first rank on this node is `local`.
  size_t communicator(int kind, int local) const {
    return reply_ring(local_world) +
           static_cast<size_t>(kind * local_world + local) * HostComm::bytes_for(world);
  }
  size_t load_pacer() const { return communicator(3, 0); }
  size_t bytes() const { return load_pacer() + LoadPacer::bytes_for(kPacedFiles); }
};

}  // namespace sparrow
