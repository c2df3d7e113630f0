// SPDX-License-Identifier: Apache-2.0
// HostComm: a Communicator of processes, for CPU tensors. Those of a node meet in shared memory: each puts
// its part into a slot, the last to come does the sum, all take what they need. Between nodes the first rank
// of each passes its node's slots on, so that every node has all of them: the sum is the same everywhere.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/host/peers.h"
#include "comm/shared/shared_memory.h"

namespace sparrow {

class HostComm : public Communicator {
 public:
  static constexpr size_t kSlot = size_t{128} << 10;  // bytes that a rank puts in at once

  struct Slot {
    uint64_t tag;    // what the rank calls, and which piece of it
    uint64_t bytes;  // of data
    alignas(64) std::byte data[kSlot];
  };
  // Brings the slots of the other nodes, and takes this node's there. On a node's first rank of the
  // communicator.
  class NodeExchange {
   public:
    virtual ~NodeExchange() = default;
    virtual Status exchange(std::span<Slot> slots) = 0;  // by rank
  };

  static size_t bytes_for(int max_size);
  // `memory`: zeroed at first. `members`: ranks of the world; `rank` of them is this process, and `here` of
  // them are on this node. `nodes`: nullptr but on the first rank of several nodes.
  HostComm(std::byte* memory, std::vector<int> members, int rank, std::vector<int> here, Life& life,
           Peers& peers, std::unique_ptr<NodeExchange> nodes = nullptr);

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  void all_reduce(const Tensor& x) override;
  void reduce_scatter_rows(const Tensor& x, std::span<const int64_t> rows, const Tensor& mine) override;
  void all_gather_rows(const Tensor& mine, std::span<const int64_t> rows, const Tensor& all) override;
  void gather(const Tensor& x, int root, const Tensor& all) override;
  void broadcast(const Tensor& x, int root) override;
  double wait_seconds() const override { return wait_seconds_; }
  void abort() override;
  bool failed() const override;

 private:
  enum class Kind : uint8_t { kAllReduce = 1, kReduceScatter, kAllGather, kGather, kBroadcast };
  struct Area;

  std::span<Slot> slots() const;  // of this round, by rank
  std::span<std::byte> put(int64_t bytes);
  std::span<const std::byte> slot(int rank, int64_t bytes) const;
  bool meet(Kind kind, int64_t total, int64_t begin);
  template <typename Done>
  bool wait(SharedWord& word, Done&& done);
  bool wait_for_round(uint32_t round);
  bool work(uint64_t tag);
  template <typename Take>
  void sum_pieces(Kind kind, const Tensor& x, Take&& take);

  Area& area_;
  const std::vector<int> members_;
  const int rank_;
  const std::vector<int> here_;
  Life& life_;
  Peers& peers_;
  const std::unique_ptr<NodeExchange> nodes_;
  const bool several_nodes_;
  uint32_t round_ = 0;
  std::atomic<bool> gave_up_{false};  // a rank left that others waited for
  Patience patience_{20'000};
  double wait_seconds_ = 0;
};

}  // namespace sparrow
