// SPDX-License-Identifier: Apache-2.0
// Lists of blocks to the ranks that select from them. A list is a line of 128 bytes; each rank writes those
// of its share straight to their place in the others' memory and raises a flag there.
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

constexpr int kThreads = 256, kListsCtas = 128;
constexpr int kQuads = kListWords * sizeof(uint64_t) / sizeof(uint4);

// Where a head's list lies among those of a rank whose own heads, the first of all, begin at `own`.
__device__ __forceinline__ int place_of_head(const ListsArgs& p, int own, int head) {
  if (head >= own && head < own + p.own_heads) return head - own;
  return head < own ? p.own_heads + head : head;
}

__global__ void __launch_bounds__(kThreads) lists_kernel(const __grid_constant__ ListsArgs p) {
  hopper::wait_for_previous_kernel();
  const int rank = p.peers.rank, size = p.ranks.end - p.ranks.begin, place = rank - p.ranks.begin;
  PeerWords* const words = words_of(p.peers, rank);
  const uint32_t exchange = hopper::load_relaxed(&words->lists_done) + 1;
  const int peer = p.ranks.begin + static_cast<int>(threadIdx.x);
  const bool is_peer = threadIdx.x < size && peer != rank;
  bool last = gridDim.x == 1;
  if (p.phases & kGive) {
    const int64_t of_rank = int64_t{p.rows} * p.own_heads * kQuads;
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < of_rank * size;
         i += int64_t{gridDim.x} * kThreads) {
      const int to = static_cast<int>((i / of_rank + place + 1) % size);  // not all to one at the same time
      const int64_t list = i % of_rank / kQuads, row = list / p.own_heads, quad = i % kQuads;
      const int head = p.first_head[to] + static_cast<int>(list % p.own_heads);
      const auto* const from = reinterpret_cast<const uint4*>(p.mine) +
                               (row * p.index_heads + place_of_head(p, p.first_head[place], head)) * kQuads;
      auto* const all = reinterpret_cast<uint4*>(at_peer(p.peers, p.ranks.begin + to, p.all));
      all[place * of_rank + list * kQuads + quad] = from[quad];
    }
    last = is_last_cta(p.peers, gridDim.x);
    if (last && is_peer) raise_flag(words_of(p.peers, peer)->lists.done[rank], exchange);
  }
  if ((p.phases & kTake) && last) {
    if (is_peer) wait_for_flag(p.peers, peer, words->lists.done[peer], exchange);
    __syncthreads();
    if (threadIdx.x == 0) words->lists_done = exchange;
  }
}

}  // namespace

void exchange_lists(const ListsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  const Arguments arguments("exchange_lists");
  check_peers(arguments, args.peers);
  arguments.range("ranks.begin", args.ranks.begin, 0, args.peers.rank)
      .range("ranks.end", args.ranks.end, args.peers.rank + 1, args.peers.size)
      .range("rows", args.rows, 1, INT_MAX)
      .range("index_heads", args.index_heads, 1, INT_MAX)
      .range("own_heads", args.own_heads, 1, args.index_heads)
      .pointer("mine", args.mine)
      .pointer("all", args.all);
  for (int place = 0; place < args.ranks.size(); ++place)
    arguments.range("first_head", args.first_head[place], 0, args.index_heads - args.own_heads);
  const int64_t quads = int64_t{args.ranks.size()} * args.rows * args.own_heads * kQuads;
  const int ctas =
      (args.phases & kGive) ? static_cast<int>(std::min<int64_t>(ceil_div(quads, kThreads), kListsCtas)) : 1;
  SPARROW_CUDA(hopper::launch_dependent(lists_kernel, {dim3(ctas), kThreads}, stream, args));
}

}  // namespace sparrow::ops::cuda
