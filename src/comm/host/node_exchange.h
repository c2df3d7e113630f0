// SPDX-License-Identifier: Apache-2.0
// What communicators send between nodes. On each node the communicator's first rank there speaks for it, and
// all of them speak to the communicator's rank 0, which hands everybody the slots of all.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/host/host_comm.h"
#include "comm/net/door.h"

namespace sparrow {

// By node: the communicator's rank 0 has those of all other nodes, they have its own.
using NodeSockets = std::map<int, Fd>;

class NodeSlots : public HostComm::NodeExchange {
 public:
  // `nodes`: that of each rank of the communicator.
  NodeSlots(std::vector<int> nodes, int node, NodeSockets sockets, const Life& life);

  Status exchange(std::span<HostComm::Slot> slots) override;

 private:
  Status receive(const Fd& socket, std::span<HostComm::Slot> slots);
  Status send(int to_node, std::span<const HostComm::Slot> slots);

  const std::vector<int> nodes_;
  const int node_;
  const NodeSockets sockets_;
  const GiveUp give_up_;
};

// Called on every rank once all are there, with the members of each communicator that this rank is in.
// `address`: where other nodes reach this one.
Result<std::vector<NodeSockets>> connect_nodes(World& world, const WorldOptions& options,
                                               const std::string& address,
                                               const std::vector<std::vector<int>>& communicators,
                                               const Life& life);

}  // namespace sparrow
