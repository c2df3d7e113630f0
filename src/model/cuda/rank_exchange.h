// SPDX-License-Identifier: Apache-2.0
// RankExchange: what the forward pass of a rank exchanges with the other ranks of its group, over the memory
// they share. Launches and never synchronises; every rank makes the same calls in the same order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <initializer_list>

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
  // list.
  struct Norm {
    int step_rows = 0;                        // what is exchanged how depends on these
    const __nv_bfloat16* residual = nullptr;  // nullptr: none
    __nv_bfloat16* residual_out = nullptr;    // nullptr: stays as it is
    const __nv_bfloat16* weight = nullptr;
    const int32_t* rows_wanted = nullptr;
    int rows = 0;
  };
  // `mark`: told when what is launched next is this rank's, and when it is other ranks' (who take turns).
  using Mark = std::function<void(bool ours)>;
  void add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark = {}) const;
  // buffers().logits of the group's first rank = all ranks' columns.
  void collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                      const Mark& mark = {}) const;
  // buffers().ids of the others = `ids` of the group's first rank.
  void hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) const;

 private:
  ops::cuda::Peers peers() const;
  // Launches the phases, one by one where ranks take turns.
  template <typename Launch>
  void in_phases(std::initializer_list<int> phases, const Mark& mark, const Launch& launch) const;

  const int hidden_;
  const float eps_;
  const Grid grid_;
  PeerMemory& memory_;
  ops::cuda::PeerBuffers<__nv_bfloat16> buffers_;
};

}  // namespace sparrow
