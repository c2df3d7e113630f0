// SPDX-License-Identifier: Apache-2.0
// Many rows: each rank adds up those that belong to it, and writes their norms to all who want them.
#pragma once

#include "ops/cuda/comm/sums.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

// Calls `use(i)` for this CTA's share of the rows that belong to this rank.
template <typename Use>
__device__ __forceinline__ void for_own_rows(const ExchangeArgs& p, const Use& use) {
  const int rank = p.peers.rank, size = p.peers.size;
  if (p.row_list == nullptr) {
    for (int i = rank + blockIdx.x * size; i < p.rows; i += gridDim.x * size) use(i);
    return;
  }
  int own = 0;
  for (int i = 0; i < p.rows; ++i)
    if (p.row_list[i] % size == rank && own++ % gridDim.x == blockIdx.x) use(i);
}

template <typename T, int kSources>
__device__ __forceinline__ void sum_row(const ExchangeArgs& p, int i, double (&in_cta)[32]) {
  const int v = threadIdx.x;
  const bool there = v < p.hidden / kVector;
  const int row = p.row_list == nullptr ? i : p.row_list[i], g = group_of(p.groups, i);
  const RankRange from = p.groups.sources[g], to = p.groups.destinations[g];
  const int64_t at = int64_t{row} * p.hidden + v * kVector;
  const T* const partial =
      static_cast<const T*>(p.partial) + at - int64_t{p.groups.first_partial_row[g]} * p.hidden;
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
    for (int r = to.begin; r < to.end; ++r)
      store_vector(at_peer(p.peers, r, p.out) + int64_t{i} * p.hidden + v * kVector, x);
  __syncthreads();  // in_cta
}

template <typename T, int kSources>
__device__ __forceinline__ void exchange_many(const ExchangeArgs& p) {
  __shared__ double in_cta[32];
  hopper::wait_for_previous_kernel();
  if (!p.peers.shared_gpu) hopper::let_next_kernel_start();
  const int rank = p.peers.rank, peer = threadIdx.x;
  PeerWords* const words = words_of(p.peers, rank);
  const uint32_t exchange = hopper::load_relaxed(&words->many_done) + 1;
  const bool is_peer = peer < p.peers.size;
  if ((p.phases & kGive) && blockIdx.x == 0 && is_peer)
    raise_flag(words_of(p.peers, peer)->ready[rank], exchange);
  bool last = gridDim.x == 1;
  if (p.phases & kTake) {
    if (is_peer) wait_for_flag(p.peers, peer, words->ready[peer], exchange);
    __syncthreads();
    for_own_rows(p, [&](int i) { sum_row<T, kSources>(p, i, in_cta); });
    last = is_last_cta(p.peers, gridDim.x);
    if (last && is_peer) raise_flag(words_of(p.peers, peer)->done[rank], exchange);
  }
  if ((p.phases & kLeave) && last) {
    if (is_peer) wait_for_flag(p.peers, peer, words->done[peer], exchange);
    __syncthreads();
    if (peer == 0) words->many_done = exchange;
  }
}

}  // namespace sparrow::ops::cuda
