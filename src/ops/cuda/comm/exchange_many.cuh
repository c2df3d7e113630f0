// SPDX-License-Identifier: Apache-2.0
// Many rows: each rank adds up those that belong to it, and writes their norms to all who want them.
#pragma once

#include "ops/cuda/comm/sums.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

// Calls `use(g, i)` for this CTA's share of the rows that belong to this rank.
template <typename Use>
__device__ __forceinline__ void for_own_rows(const ExchangeArgs& p, const Use& use) {
  for (int g = 0; g < p.groups.count; ++g) {
    const RankRange keepers = p.groups.keepers[g];
    if (!contains(keepers, p.peers.rank)) continue;
    const int place = p.peers.rank - keepers.begin, size = size_of(keepers);
    const int begin = p.groups.first_row[g], end = p.groups.first_row[g + 1];
    if (p.row_list == nullptr) {
      for (int i = begin + place + blockIdx.x * size; i < end; i += gridDim.x * size) use(g, i);
      continue;
    }
    int own = 0;
    for (int i = begin; i < end; ++i)
      if (p.row_list[i] % size == place && own++ % gridDim.x == blockIdx.x) use(g, i);
  }
}

template <typename T, int kSources>
__device__ __forceinline__ void sum_row(const ExchangeArgs& p, int g, int i, double (&in_cta)[32]) {
  const int v = threadIdx.x;
  const bool there = v < p.hidden / kVector;
  const int row = row_of(p, g, i);
  const RankRange from = p.groups.sources[g], to = p.groups.destinations[g];
  const int64_t at = int64_t{row} * p.hidden + v * kVector;
  const T* const partial = static_cast<const T*>(p.partial) + partial_at(p, g, row, v);
  __nv_bfloat16* const out = p.out + out_at(p, g, i, v);
  Vector weight{}, residual{}, x{};
  double squares = 0;
  if (there) {
    PartialVector<T> parts[kSources];
#pragma unroll
    for (int s = 0; s < kSources; ++s) parts[s].load(at_peer(p.peers, from.begin + s, partial));
    weight = load_vector(p.weight + v * kVector);
    if (p.residual != nullptr) residual = load_vector(p.residual + at);
    x = add_residual(tree_sum<0, kSources>([&](int s) { return floats_of(parts[s]); }), residual);
    if (p.residual_out != nullptr) store_vector(p.residual_out + at, x);
    add_squares(x, squares);
  }
  const float scale = norm_scale(cta_sum(squares, in_cta), p.hidden, p.eps);
  scale_vector(x, scale, weight);
  if (there)
    for (int r = to.begin; r < to.end; ++r) store_vector(at_peer(p.peers, r, out), x);
  __syncthreads();  // in_cta
}

template <typename T, int kSources>
__device__ __forceinline__ void exchange_many(const ExchangeArgs& p) {
  __shared__ double in_cta[32];
  hopper::wait_for_previous_kernel();
  if (!p.peers.shared_gpu) hopper::let_next_kernel_start();
  const int rank = p.peers.rank, peer = p.groups.ranks.begin + static_cast<int>(threadIdx.x);
  PeerWords* const words = words_of(p.peers, rank);
  const uint32_t exchange = hopper::load_relaxed(&words->many_done) + 1;
  const bool is_peer = peer < p.groups.ranks.end;
  if ((p.phases & kGive) && blockIdx.x == 0 && is_peer)
    raise_flag(words_of(p.peers, peer)->many.ready[rank], exchange);
  bool last = gridDim.x == 1;
  if (p.phases & kTake) {
    if (is_peer) wait_for_flag(p.peers, peer, words->many.ready[peer], exchange);
    __syncthreads();
    for_own_rows(p, [&](int g, int i) { sum_row<T, kSources>(p, g, i, in_cta); });
    last = is_last_cta(p.peers, gridDim.x);
    if (last && is_peer) raise_flag(words_of(p.peers, peer)->many.done[rank], exchange);
  }
  if ((p.phases & kLeave) && last) {
    if (is_peer) wait_for_flag(p.peers, peer, words->many.done[peer], exchange);
    __syncthreads();
    if (threadIdx.x == 0) words->many_done = exchange;
  }
}

}  // namespace sparrow::ops::cuda
