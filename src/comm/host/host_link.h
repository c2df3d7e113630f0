// SPDX-License-Identifier: Apache-2.0
// HostLink: the ControlLink of processes. Messages go through the node's ring; rank 0 also sends them to the
// first rank of every other node, where a thread puts them into that node's ring. Replies come back through a
// ring of their own, from other nodes over the socket to rank 0.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "comm/grid.h"
#include "comm/host/life.h"
#include "comm/host/node_memory.h"
#include "comm/host/peers.h"

namespace sparrow {

class HostLink : public ControlLink {
 public:
  // `messages` as in Meeting.
  HostLink(int rank, std::byte* memory, const NodeMemory& layout, std::vector<Fd> messages, Life& life,
           Peers& peers);
  ~HostLink() override;

  int rank() const override { return rank_; }
  int world() const override { return layout_.world; }
  Status send(std::span<const std::byte> message) override;
  Result<Bytes> receive() override;
  Status reply(std::span<const std::byte> message) override;
  Result<Bytes> receive_reply(int rank) override;
  void fail(int rank, const std::string& reason) override { peers_.fail(rank, reason); }
  std::optional<Failure> failure() const override { return life_.failure(); }

 private:
  int node() const { return rank_ / layout_.local_world; }
  int local() const { return rank_ % layout_.local_world; }
  void relay();

  const int rank_;
  const NodeMemory layout_;
  std::vector<Fd> messages_;
  Life& life_;
  Peers& peers_;
  Ring ring_;
  std::vector<Ring> reply_rings_;  // of rank 0's node, by place on it
  std::vector<Bytes> replies_;     // rank 0: what it has taken out of them
  std::atomic<bool> closing_{false};
  std::thread relay_;
};

}  // namespace sparrow
