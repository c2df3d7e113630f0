// SPDX-License-Identifier: Apache-2.0
#include "model/cuda/rank_exchange.h"

#include "device/cuda/check.h"

namespace sparrow {

RankExchange::RankExchange(const ModelConfig& config, const GpuStepLimits& limits, const Grid& grid,
                           PeerMemory& memory)
    : hidden_(config.hidden_size), eps_(config.rms_norm_eps), grid_(grid), memory_(memory) {
  Arena arena(memory.of(memory.rank()));
  buffers_ = ops::cuda::lay_out_peers<__nv_bfloat16>(arena, peer_shape(config, limits));
  SPARROW_CUDA(cudaMemset(buffers_.mailbox, 0xff, ops::cuda::mailbox_bytes(hidden_, sizeof(__nv_bfloat16))));
  SPARROW_CUDA(cudaDeviceSynchronize());
}

ops::cuda::Peers RankExchange::peers() const {
  ops::cuda::Peers p{.memory = {},
                     .mailbox = buffers_.mailbox,
                     .rank = memory_.rank(),
                     .size = memory_.size(),
                     .report = memory_.report(),
                     .shared_gpu = shares_gpu()};
  for (int r = 0; r < p.size; ++r) p.memory[r] = memory_.of(r);
  return p;
}

template <typename Launch>
void RankExchange::in_phases(std::initializer_list<int> phases, const Mark& mark,
                             const Launch& launch) const {
  if (mark) mark(true);
  if (!memory_.takes_turns()) return launch(ops::cuda::kAllPhases);
  for (const int phase : phases) {
    if (phase != *phases.begin()) {
      if (mark) mark(false);
      memory_.meet();
      if (mark) mark(true);
    }
    launch(phase);
  }
}

void RankExchange::add_norm(const Norm& norm, cudaStream_t stream, const Mark& mark) const {
  using namespace ops::cuda;
  const bool many = norm.step_rows > few_exchange_rows(memory_.size());
  ExchangeArgs args{.peers = peers(),
                    .groups = one_group(memory_.size(), norm.rows),
                    .partial = buffers_.delta,
                    .residual = norm.residual,
                    .residual_out = norm.residual_out,
                    .row_list = norm.rows_wanted,
                    .weight = norm.weight,
                    .out = buffers_.normed,
                    .rows = norm.rows,
                    .hidden = hidden_,
                    .eps = eps_,
                    .many = many};
  const auto launch = [&](int phases) {
    args.phases = phases;
    exchange_norm(args, stream);
  };
  many ? in_phases({kGive, kTake, kLeave}, mark, launch) : in_phases({kGive, kTake}, mark, launch);
}

void RankExchange::collect_logits(const float* mine, int rows, int cols, cudaStream_t stream,
                                  const Mark& mark) const {
  using namespace ops::cuda;
  const int first = grid_.group() * grid_.tp;
  in_phases({kGive, kTake, kLeave}, mark, [&](int phases) {
    collect_columns({.peers = peers(),
                     .ranks = {first, first + grid_.tp},
                     .x = mine,
                     .all = buffers_.logits,
                     .rows = rows,
                     .cols = cols,
                     .phases = phases},
                    stream);
  });
}

void RankExchange::hand_out_ids(const int32_t* ids, int count, cudaStream_t stream) const {
  using namespace ops::cuda;
  const int first = grid_.group() * grid_.tp;
  in_phases({kGive, kTake}, {}, [&](int phases) {
    ops::cuda::hand_out_ids({.peers = peers(),
                             .ranks = {first, first + grid_.tp},
                             .ids = ids,
                             .everywhere = buffers_.ids,
                             .count = count,
                             .phases = phases},
                            stream);
  });
}

}  // namespace sparrow
