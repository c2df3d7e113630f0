// SPDX-License-Identifier: Apache-2.0
// Few rows: a cluster of CTAs for each, which sends the row's parts to all who want it and adds up what the
// others send.
#pragma once

#include "ops/cuda/comm/sums.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

inline constexpr int kMaxFewCluster = 8;

__device__ __forceinline__ void store_cluster(uint32_t address, double value) {
  asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(address), "d"(value) : "memory");
}

// Sum over the cluster, the same on all threads. Between cluster_arrive_relaxed(), with which all CTAs say
// that they have started, and the end.
__device__ __forceinline__ double cluster_sum(double x, int cta, int ctas) {
  __shared__ double in_cta[32], of_ctas[kMaxFewCluster];
  x = cta_sum(x, in_cta);
  hopper::cluster_wait();
  if (ctas == 1) return x;
  if (threadIdx.x < ctas) store_cluster(hopper::cluster_address(&of_ctas[cta], threadIdx.x), x);
  hopper::cluster_arrive();
  hopper::cluster_wait();
  double sum = 0;
  for (int c = 0; c < ctas; ++c) sum += of_ctas[c];
  return sum;
}

// Where the vector of row i that rank `source` sends lies in a mailbox.
template <typename T>
__device__ __forceinline__ T* mailbox_vector(const ExchangeArgs& p, uint32_t exchange, int i, int source,
                                             int vector) {
  const int slot = static_cast<int>(exchange % 2) * kMailboxRows + i * p.peers.size + source;
  return reinterpret_cast<T*>(p.peers.mailbox) + int64_t{slot} * p.hidden + vector * kVector;
}

template <typename T>
__device__ __forceinline__ void send(const ExchangeArgs& p, uint32_t exchange, int i, int vector,
                                     const RankRange& to, const PartialVector<T>& mine) {
  T* const box = mailbox_vector<T>(p, exchange, i, p.peers.rank, vector);
  // Not all to the same one at the same time.
#pragma unroll
  for (int step = 1; step < kMaxPeers; ++step) {
    if (step >= p.peers.size) break;
    const int rank = (p.peers.rank + step) % p.peers.size;
    if (contains(to, rank)) mine.store(at_peer(p.peers, rank, box));
  }
}

// The sum over the sources, of which this rank may be one. All are asked at once, again and again: one after
// the other would take as many times as long as one needs to look.
template <typename T, int kSources>
__device__ __forceinline__ Floats receive(const ExchangeArgs& p, uint32_t exchange, int i, int vector,
                                          int first_source, const PartialVector<T>& mine) {
  PartialVector<T> parts[kSources];
  const auto box = [&](int s) { return mailbox_vector<T>(p, exchange, i, first_source + s, vector); };
  const int own = p.peers.rank - first_source;
  Patience patience(p.peers);
  for (int missing = 0; missing >= 0 && !patience.is_over(first_source + missing);) {
#pragma unroll
    for (int s = 0; s < kSources; ++s)
      if (s != own) parts[s].load(box(s));
    missing = -1;
#pragma unroll
    for (int s = 0; s < kSources; ++s)
      if (s != own && parts[s].has_empty_word()) missing = s;
  }
#pragma unroll
  for (int s = 0; s < kSources; ++s) {
    if (s == own)
      parts[s] = mine;
    else
      PartialVector<T>::filled(kEmptyWord).store(box(s));
  }
  return tree_sum<0, kSources>([&](int s) { return floats_of(parts[s]); });
}

template <typename T, int kSources>
__device__ __forceinline__ void exchange_few(const ExchangeArgs& p, int cta, int ctas) {
  hopper::cluster_arrive_relaxed();
  const int i = blockIdx.x / ctas, vectors = p.hidden / kVector, vectors_of_cta = (vectors + ctas - 1) / ctas;
  const int v = cta * vectors_of_cta + threadIdx.x;
  const bool there = threadIdx.x < vectors_of_cta && v < vectors;
  Vector weight{}, residual{}, x{};
  if (there) weight = load_vector(p.weight + v * kVector);
  if (!p.peers.shared_gpu) hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();

  PeerWords* const words = words_of(p.peers, p.peers.rank);
  const uint32_t exchange = hopper::load_relaxed(&words->few_done);
  const int row = p.row_list == nullptr ? i : p.row_list[i];
  const int g = group_of(p.groups, i);
  const RankRange from = p.groups.sources[g], to = p.groups.destinations[g];
  const int64_t at = int64_t{row} * p.hidden + v * kVector;
  PartialVector<T> mine = PartialVector<T>::filled(0);
  if (there && contains(from, p.peers.rank)) {
    mine.load(static_cast<const T*>(p.partial) + at - int64_t{p.groups.first_partial_row[g]} * p.hidden);
    mine.avoid_empty_words();
    if (p.phases & kGive) send(p, exchange, i, v, to, mine);
  }
  const bool wanted = (p.phases & kTake) && contains(to, p.peers.rank);
  double squares = 0;
  if (there && wanted) {
    if (p.residual != nullptr) residual = load_vector(p.residual + at);
    x = add_residual(receive<T, kSources>(p, exchange, i, v, from.begin, mine), residual);
    if (p.residual_out != nullptr) store_vector(p.residual_out + at, x);
    add_squares(x, squares);
  }
  const float scale = norm_scale(cluster_sum(squares, cta, ctas), p.hidden, p.eps);
  if (there && wanted) {
    scale_vector(x, scale, weight);
    store_vector(p.out + int64_t{i} * p.hidden + v * kVector, x);
  }
  // All CTAs have read the number of this exchange when the last one counts on.
  if ((p.phases & kTake) && threadIdx.x == 0 && atomicInc(&words->ctas_done, gridDim.x - 1) == gridDim.x - 1)
    words->few_done = exchange + 1;
}

}  // namespace sparrow::ops::cuda
