// SPDX-License-Identifier: Apache-2.0
// RankExchange: what the forward pass of a rank exchanges with the other ranks of its group, and of all
// groups: over memory they share, or over NCCL. Launches and never synchronises; every rank makes the same
// calls in the same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/control_link.h"
#include "comm/grid.h"
#include "comm/nccl/nccl_ranks.h"
#include "model/exchange/row_sum.h"
#include "model/step_buffers.h"

namespace sparrow {

class RankExchange {
 public:
  virtual ~RankExchange() = default;
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // Finds the others, once, before the first step; all ranks call it. A rank that never does runs alone.
  // `everybody` takes this rank's bytes and gives all ranks', by rank.
  using Everybody = std::function<Result<std::vector<Bytes>>(std::span<const std::byte>)>;
  virtual Status meet(const Everybody& everybody) = 0;

  // Whether there are others: what follows is called only then.
  virtual bool is_group() const = 0;
  bool leads() const { return grid_.leads_group(); }
  // Those whose GPU this is, one's own among them.
  virtual int ranks_on_gpu() const = 0;
  // Other ranks' kernels run on this GPU at the same time.
  bool shares_gpu() const { return ranks_on_gpu() > 1 && !takes_turns(); }
  // Why nothing that was computed since is worth anything: a rank is gone. Any thread.
  virtual std::optional<Error> failure() const = 0;
  virtual size_t device_bytes() const = 0;
  // A line about this way that whoever starts it should know; "": nothing.
  virtual std::string warning() const { return {}; }

  // Ranks of one process may launch in turn, as PeerMemory says.
  virtual bool takes_turns() const { return false; }
  virtual void begin_turn() const {}
  virtual void end_turn() const {}

  using Buffers = ops::cuda::PeerBuffers<__nv_bfloat16>;
  const Buffers& buffers() const { return buffers_; }

  // normed[i] = rms_norm(residual[r] + the ranks' delta[r]) with r = rows_wanted[i], or i where there is no
  // list. A group's rows lie at the front of what is its own alone, and behind those of the groups before
  // where there are all groups'.
  using Sum = RowSum;
  struct Norm {
    Sum sum = Sum::kOfGroup;
    std::span<const int> step_rows;           // of each group; how is exchanged depends on these
    const __nv_bfloat16* residual = nullptr;  // [group's rows]; nullptr: none
    __nv_bfloat16* residual_out = nullptr;    // nullptr: stays as it is
    const __nv_bfloat16* weight = nullptr;
    const int32_t* rows_wanted = nullptr;  // of all groups, as many of each as there are rows
    std::span<const int> rows;             // of each group: step_rows, or those wanted
  };
  // Whether the residual of a row is on one rank of the group and not on all.
  virtual bool is_many(std::span<const int> step_rows) const = 0;
  // `mark`: told when what is launched next is this rank's, and when it is other ranks' (who take turns).
  using Mark = std::function<void(bool ours)>;
  virtual void add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) = 0;
  // buffers().logits of the group's first rank = all ranks' columns.
  virtual void collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                              const Mark& mark) = 0;
  // buffers().lists of each rank of the group = what all have for its index heads in `mine`.
  virtual void exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream, const Mark& mark) = 0;
  // buffers().ids of the others = `ids` of the group's first rank.
  virtual void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) = 0;

 protected:
  explicit RankExchange(const Grid& grid) : grid_(grid) {}

  const Grid grid_;
  Buffers buffers_{};
};

// Over memory that the GPUs of a node open from each other (comm/cuda/peer_memory.h), a launch each.
Result<std::unique_ptr<RankExchange>> create_peer_exchange(const ModelConfig& config,
                                                           const GpuStepLimits& limits, const Grid& grid);

// Over NCCL (model/exchange/nccl_rows.h), with the same bits. Everything goes to `stream`, which is that of
// `ranks`. Without these the rank runs alone.
Result<std::unique_ptr<RankExchange>> create_nccl_exchange(const ModelConfig& config,
                                                           const GpuStepLimits& limits, const Grid& grid,
                                                           std::unique_ptr<NcclRanks> ranks,
                                                           cudaStream_t stream);

}  // namespace sparrow
