// SPDX-License-Identifier: Apache-2.0
// PeerMemory: a piece of GPU memory on every rank of a node that all of them read and write. Each rank takes
// its own and opens the others' by CUDA's IPC handles. Ranks may also live in one process on one GPU, for
// tests and measurements: then they take turns on one stream.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "comm/control_link.h"
#include "device/cuda/memory.h"

namespace sparrow {

class PeerMemory {
 public:
  // Zeros, on the current device. `bytes` is a multiple of kPage: what shared a page would be handed out with
  // it.
  static constexpr size_t kPage = size_t{2} << 20;
  static Result<std::unique_ptr<PeerMemory>> create(int rank, int size, size_t bytes);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // Our memory, as others open it. They may write there from then on: what they must find in it stands
  // before.
  Result<Bytes> handle() const;
  // Those of all ranks, one's own among them. Error: names the rank whose memory this GPU cannot reach.
  Status open(std::span<const Bytes> handles);
  bool is_open() const { return is_open_; }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(memory_.size()); }
  std::byte* of(int rank) const { return memory_[static_cast<size_t>(rank)]; }
  size_t device_bytes() const { return mine_.bytes(); }
  int ranks_on_gpu() const { return ranks_on_gpu_; }
  // Of the GPU of the node that has most of them: all ranks say the same.
  int most_ranks_on_gpu() const { return most_ranks_on_gpu_; }

  // Ranks of one process launch on one stream: a kernel cannot wait there for one that is launched after it.
  // So they launch in turn, each from its own thread: between begin_turn() and end_turn() no other does.
  // meet() gives the turn on and returns with the next: all others have launched what they had until theirs,
  // or, after end_turn(), have nothing more. All ranks begin and end a round of turns.
  bool takes_turns() const { return turn_ != nullptr; }
  void begin_turn() const;
  void meet() const;
  void end_turn() const;

  // For kernels: 1 + the rank that was waited for in vain.
  uint32_t* report() const { return report_; }
  std::optional<int> missed_rank() const;

  // Whose turn it is.
  struct Turn {
    std::mutex mutex;
    std::condition_variable passed;
    int rank = 0;
    uint32_t ended = 0;  // a bit for each rank that has no more turns in this round
  };

 private:
  // The next rank that has not ended its turns is on.
  void pass_turn(bool ends) const;
  PeerMemory(int rank, int size) : rank_(rank), memory_(static_cast<size_t>(size)) {}

  const int rank_;
  std::vector<std::byte*> memory_;  // by rank
  std::vector<std::byte*> opened_;  // those of them to be closed
  DeviceBuffer mine_;
  PinnedBuffer host_report_;
  uint32_t* report_ = nullptr;
  int ranks_on_gpu_ = 1, most_ranks_on_gpu_ = 1;  // this one's; any one's
  bool is_open_ = false;
  Turn turn_of_all_;  // rank 0's is used
  Turn* turn_ = nullptr;
};

}  // namespace sparrow
