// SPDX-License-Identifier: Apache-2.0
// RankExchange: what the forward pass of a rank exchanges with the other ranks of its group, and of all
// groups, over the memory they share. Launches and never synchronises; every rank makes the same calls in the
// same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>

#include "comm/cuda/peer_memory.h"
#include "comm/grid.h"
#include "model/step_buffers.h"
#include "ops/cuda/comm/exchange.h"

namespace sparrow {

class RankExchange {
 public:
  // The memory is borrowed; nobody else has opened it yet. A rank whose memory is never opened runs alone.
  RankExchange(const ModelConfig& config, const GpuStepLimits& limits, const Grid& grid, PeerMemory& memory);

  // Whether there are others: what follows is called only then.
  bool is_group() const { return memory_.is_open(); }
  bool leads() const { return grid_.leads_group(); }
  // Other ranks' kernels run on this GPU at the same time.
  bool shares_gpu() const { return memory_.ranks_on_gpu() > 1 && !memory_.takes_turns(); }
  const ops::cuda::PeerBuffers<__nv_bfloat16>& buffers() const { return buffers_; }

  // normed[i] = rms_norm(residual[r] + the ranks' delta[r]) with r = rows_wanted[i], or i where there is no
  // list. A group's rows lie at the front of what is its own alone, and behind those of the groups before
  // where there are all groups'.
  enum class Sum : uint8_t {
    kOfGroup,        // over the group, whose rows delta and normed are
    kOfGroupForAll,  // over the group, whose rows delta are; normed are the rows of all groups
    kOfAll           // over all ranks; delta are the rows of all groups and normed the group's
  };
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
  bool is_many(std::span<const int> step_rows) const;
  // `mark`: told when what is launched next is this rank's, and when it is other ranks' (who take turns).
  using Mark = std::function<void(bool ours)>;
  void add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark = {}) const;
  // buffers().logits of the group's first rank = all ranks' columns.
  void collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                      const Mark& mark = {}) const;
  // buffers().lists of each rank of the group = what all have for its index heads in `mine`.
  void exchange_lists(const uint64_t* mine, int rows, cudaStream_t stream, const Mark& mark = {}) const;
  // buffers().ids of the others = `ids` of the group's first rank.
  void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) const;

 private:
  ops::cuda::Peers peers() const;
  ops::cuda::RowGroups groups_of(const Norm& norm) const;
  // Launches the phases, one by one where ranks take turns.
  template <typename Launch>
  void in_phases(std::initializer_list<int> phases, const Mark& mark, const Launch& launch) const;

  const int hidden_;
  const float eps_;
  const Grid grid_;
  const int index_heads_, own_heads_;  // of the group, of this rank
  PeerMemory& memory_;
  ops::cuda::PeerBuffers<__nv_bfloat16> buffers_;
};

}  // namespace sparrow
