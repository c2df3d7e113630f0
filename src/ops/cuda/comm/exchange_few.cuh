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

// A row in an exchange.
struct FewRow {
  uint32_t exchange;
  int mailbox_row;
  RankRange sources, destinations, keepers;
  int residual_keeper;  // who sends the residual to those who have none
};

__device__ __forceinline__ FewRow few_row(const ExchangeArgs& p, uint32_t exchange, int g, int i) {
  const int place = i - p.groups.first_row[g];
  const RankRange keepers = p.groups.keepers[g];
  return {exchange, p.groups.first_mailbox_row[g] + place,   p.groups.sources[g], p.groups.destinations[g],
          keepers,  keepers.begin + place % size_of(keepers)};
}

// Where what rank `source` sends of a row lies in a mailbox.
template <typename T>
__device__ __forceinline__ T* mailbox_row(const ExchangeArgs& p, const FewRow& row, int source) {
  const int slot =
      static_cast<int>(row.exchange % 2) * kMailboxRows + row.mailbox_row * p.peers.size + source;
  return reinterpret_cast<T*>(p.peers.mailbox) + int64_t{slot} * p.hidden;
}
template <typename T>
__device__ __forceinline__ T* mailbox_vector(const ExchangeArgs& p, const FewRow& row, int source,
                                             int vector) {
  return mailbox_row<T>(p, row, source) + vector * kVector;
}
// The residual lies in the place of a rank that is no source: who has none of it is none itself.
template <typename T>
__device__ __forceinline__ __nv_bfloat16* residual_vector(const ExchangeArgs& p, const FewRow& row,
                                                          int vector) {
  T* const box = mailbox_row<T>(p, row, row.sources.end % p.peers.size);
  return reinterpret_cast<__nv_bfloat16*>(box) + vector * kVector;
}

// Writes to that place of all others that `wants` names, not to the same one at the same time as everybody.
template <typename T, typename Wants>
__device__ __forceinline__ void send(const Peers& peers, T* box, const PartialVector<T>& mine,
                                     const Wants& wants) {
#pragma unroll
  for (int step = 1; step < kMaxPeers; ++step) {
    if (step >= peers.size) break;
    const int rank = (peers.rank + step) % peers.size;
    if (wants(rank)) mine.store(at_peer(peers, rank, box));
  }
}

// The sum over the sources, of which this rank may be one. All are asked at once, again and again: one after
// the other would take as many times as long as one needs to look.
template <typename T, int kSources>
__device__ __forceinline__ Floats receive(const ExchangeArgs& p, const FewRow& row, int vector,
                                          const PartialVector<T>& mine) {
  PartialVector<T> parts[kSources];
  const int first_source = row.sources.begin, own = p.peers.rank - first_source;
  const auto box = [&](int s) { return mailbox_vector<T>(p, row, first_source + s, vector); };
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

template <typename T>
__device__ __forceinline__ Vector receive_residual(const ExchangeArgs& p, const FewRow& row, int vector) {
  __nv_bfloat16* const box = residual_vector<T>(p, row, vector);
  PartialVector<__nv_bfloat16> residual;
  Patience patience(p.peers);
  do residual.load(box);
  while (residual.has_empty_word() && !patience.is_over(row.residual_keeper));
  PartialVector<__nv_bfloat16>::filled(kEmptyWord).store(box);
  return from_partial(residual);
}

// What this rank has of a row goes to all who want it: its part of the sum, which is returned, and one of the
// keepers' residual.
template <typename T>
__device__ __forceinline__ PartialVector<T> give(const ExchangeArgs& p, const FewRow& row, int vector,
                                                 const T* partial, const Vector& residual) {
  PartialVector<T> mine = PartialVector<T>::filled(0);
  if (contains(row.sources, p.peers.rank)) {
    mine.load(partial);
    mine.avoid_empty_words();
    if (p.phases & kGive)
      send(p.peers, mailbox_vector<T>(p, row, p.peers.rank, vector), mine,
           [&](int rank) { return contains(row.destinations, rank); });
  }
  if ((p.phases & kGive) && p.residual != nullptr && p.peers.rank == row.residual_keeper &&
      size_of(row.destinations) > size_of(row.keepers)) {
    PartialVector<__nv_bfloat16> kept = to_partial(residual);
    kept.avoid_empty_words();
    send(p.peers, residual_vector<T>(p, row, vector), kept,
         [&](int rank) { return contains(row.destinations, rank) && !contains(row.keepers, rank); });
  }
  return mine;
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
  const int g = group_of(p.groups, i), in_group = row_of(p, g, i);
  const FewRow row = few_row(p, exchange, g, i);
  const int64_t at = int64_t{in_group} * p.hidden + v * kVector;  // of the residual
  const bool keeps = contains(row.keepers, p.peers.rank);
  const bool wanted = (p.phases & kTake) && contains(row.destinations, p.peers.rank);
  double squares = 0;
  if (there) {
    if (keeps && p.residual != nullptr) residual = load_vector(p.residual + at);
    const T* const partial = static_cast<const T*>(p.partial) + partial_at(p, g, in_group, v);
    const PartialVector<T> mine = give(p, row, v, partial, residual);
    if (wanted) {
      const Floats sum = receive<T, kSources>(p, row, v, mine);
      if (!keeps && p.residual != nullptr) residual = receive_residual<T>(p, row, v);
      x = add_residual(sum, residual);
      if (keeps && p.residual_out != nullptr) store_vector(p.residual_out + at, x);
      add_squares(x, squares);
    }
  }
  const float scale = norm_scale(cluster_sum(squares, cta, ctas), p.hidden, p.eps);
  if (there && wanted) {
    scale_vector(x, scale, weight);
    store_vector(p.out + out_at(p, g, i, v), x);
  }
  // All CTAs have read the number of this exchange when the last one counts on.
  if ((p.phases & kTake) && threadIdx.x == 0 && atomicInc(&words->ctas_done, gridDim.x - 1) == gridDim.x - 1)
    words->few_done = exchange + 1;
}

}  // namespace sparrow::ops::cuda
