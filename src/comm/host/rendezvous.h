// SPDX-License-Identifier: Apache-2.0
// How the processes of an instance find each other. Every rank connects to rank 0, over the node's socket or,
// with several nodes, over TCP; rank 0 judges what they say of themselves and lets all go on at once, or
// none. The first rank of each node makes the memory that its ranks share and hands it to them.
#pragma once

#include <vector>

#include "comm/net/door.h"
#include "comm/shared/shared_memory.h"
#include "comm/world.h"

namespace sparrow {

struct Meeting {
  std::vector<Fd> control;   // by rank: rank 0 has those of all others, they have rank 0's
  std::vector<Fd> messages;  // by node: rank 0 has those of the other nodes' first ranks, they have node 0's
  SharedMemory memory;
  std::string address;  // where other nodes reach this one
};

// `memory_bytes`: what the ranks of a node share.
Result<Meeting> meet(const WorldOptions& options, size_t memory_bytes);

}  // namespace sparrow
