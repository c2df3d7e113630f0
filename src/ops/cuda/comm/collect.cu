// SPDX-License-Identifier: Apache-2.0
// Logits to the rank that draws, and the ids it drew to the others. They have flags and a count of their own:
// one group may have more rows of logits than another, and they all count the exchanges of rows alike.
#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/check.h"
#include "ops/cuda/comm/check_peers.h"
#include "ops/cuda/comm/exchange.h"
#include "ops/cuda/comm/wait.cuh"
#include "sm90/launch.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kThreads = 512, kCollectCtas = 64;

// The first rank has used what it got the last time when it comes here, and says so: nobody writes before.
template <typename Number>  // float4, or float where rows are no multiple of four
__global__ void __launch_bounds__(kThreads) collect_kernel(const __grid_constant__ CollectArgs p) {
  hopper::wait_for_previous_kernel();
  const int rank = p.peers.rank, first = p.ranks.begin, size = p.ranks.size(), peer = threadIdx.x;
  PeerWords* const words = words_of(p.peers, rank);
  const uint32_t exchange = hopper::load_relaxed(&words->collects_done) + 1;
  if ((p.phases & kGive) && rank == first && blockIdx.x == 0 && peer < size)
    raise_flag(words_of(p.peers, first + peer)->collects.ready[rank], exchange);
  bool last = gridDim.x == 1;
  if (p.phases & kTake) {
    if (peer == 0) wait_for_flag(p.peers, first, words->collects.ready[first], exchange);
    __syncthreads();
    constexpr int kNumbers = sizeof(Number) / sizeof(float);
    const int cols = p.cols / kNumbers;
    auto* const to = reinterpret_cast<Number*>(at_peer(p.peers, first, p.all));
    const auto* const from = reinterpret_cast<const Number*>(p.x);
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < int64_t{p.rows} * cols;
         i += int64_t{gridDim.x} * kThreads) {
      const int64_t row = i / cols, col = i % cols;
      to[(row * size + rank - first) * cols + col] = from[i];
    }
    last = is_last_cta(p.peers, gridDim.x);
    if (last && peer == 0) raise_flag(words_of(p.peers, first)->collects.done[rank], exchange);
  }
  if ((p.phases & kLeave) && last) {
    if (rank == first && peer < size)
      wait_for_flag(p.peers, first + peer, words->collects.done[first + peer], exchange);
    __syncthreads();
    if (peer == 0) words->collects_done = exchange;
  }
}

// The others have used the ids of the step before: they have been in this step's exchanges since.
__global__ void __launch_bounds__(kThreads) hand_out_kernel(const __grid_constant__ HandOutArgs p) {
  hopper::wait_for_previous_kernel();
  const int rank = p.peers.rank, first = p.ranks.begin, others = p.ranks.size() - 1, peer = threadIdx.x;
  PeerWords* const words = words_of(p.peers, rank);
  const uint32_t exchange = hopper::load_relaxed(&words->collects_done) + 1;
  if ((p.phases & kGive) && rank == first) {
    for (int i = threadIdx.x; i < p.count * others; i += kThreads)
      at_peer(p.peers, first + 1 + i / p.count, p.everywhere)[i % p.count] = p.ids[i % p.count];
    __threadfence_system();
    __syncthreads();
    if (peer < others) raise_flag(words_of(p.peers, first + 1 + peer)->collects.done[rank], exchange);
  }
  if (p.phases & kTake) {
    if (rank != first && peer == 0) wait_for_flag(p.peers, first, words->collects.done[first], exchange);
    __syncthreads();
    if (peer == 0) words->collects_done = exchange;
  }
}

void check_ranks(const Arguments& arguments, const Peers& peers, const RankRange& ranks) {
  check_peers(arguments, peers);
  arguments.range("ranks.begin", ranks.begin, 0, peers.rank)
      .range("ranks.end", ranks.end, peers.rank + 1, peers.size);
}

}  // namespace

void collect_columns(const CollectArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments("collect_columns");
  check_ranks(arguments, args.peers, args.ranks);
  arguments.range("rows", args.rows, 1, INT_MAX)
      .range("cols", args.cols, 1, INT_MAX)
      .pointer("x", args.x)
      .pointer("all", args.all);
  const bool fours = args.cols % 4 == 0;
  const int64_t numbers = int64_t{args.rows} * args.cols / (fours ? 4 : 1);
  const int ctas = (args.phases & kTake)
                       ? static_cast<int>(std::min<int64_t>(ceil_div(numbers, kThreads), kCollectCtas))
                       : 1;
  SPARROW_CUDA(hopper::launch_dependent(fours ? collect_kernel<float4> : collect_kernel<float>,
                                        {dim3(ctas), kThreads}, stream, args));
}

void hand_out_ids(const HandOutArgs& args, cudaStream_t stream) {
  if (args.count == 0) return;
  const Arguments arguments("hand_out_ids");
  check_ranks(arguments, args.peers, args.ranks);
  arguments.range("count", args.count, 1, INT_MAX / kMaxPeers)
      .pointer("everywhere", args.everywhere, alignof(int32_t));
  if (args.peers.rank == args.ranks.begin) arguments.pointer("ids", args.ids, alignof(int32_t));
  SPARROW_CUDA(hopper::launch_dependent(hand_out_kernel, {dim3(1), kThreads}, stream, args));
}

}  // namespace sparrow::ops::cuda
