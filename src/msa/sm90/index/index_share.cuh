// SPDX-License-Identifier: Apache-2.0
// The two small kernels around a share of the cache: the list of the blocks that it has, once for each step,
// and the selection from the candidates of all shares. The best of all blocks are among the best of each
// share, so the selection is that of a whole cache, to the bit.
#pragma once

#include "msa/sm90/index/index_key.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

struct ShareListTraits {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
};

// One CTA for each request. Blocks keep their order.
__global__ void __launch_bounds__(ShareListTraits::kThreads)
    share_list_kernel(const __grid_constant__ IndexListParams p) {
  __shared__ int totals[ShareListTraits::kWarps];
  const int request = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  hopper::wait_for_previous_kernel();
  const IndexBatch& b = p.batch;
  const int64_t row = int64_t{request} * b.max_blocks;
  const int blocks = min((b.seq_lens[request] + kBlock - 1) / kBlock, b.max_blocks);
  int count = 0;
  for (int base = 0; base < blocks; base += ShareListTraits::kThreads) {
    const int block = base + threadIdx.x;
    const int page = block < blocks ? b.block_table[row + block] : 0;
    const bool is_listed = block < blocks && page % p.share.count == p.share.share;
    const uint32_t listed = __ballot_sync(kFullWarp, is_listed);
    if (lane == 0) totals[warp] = __popc(listed);
    __syncthreads();
    int before = count;
#pragma unroll
    for (int w = 0; w < ShareListTraits::kWarps; ++w) {
      if (w < warp) before += totals[w];
      count += totals[w];
    }
    const int at = before + __popc(listed & ((1u << lane) - 1));
    if (is_listed) {
      p.pages[row + at] = page / p.blocks_per_page;
      p.blocks[row + at] = block;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) p.counts[request] = count;
}

struct ShareGatherTraits {
  static constexpr int kWarps = 8, kThreads = kWarps * 32;
  static constexpr int kPerLane = kMaxIndexShares * kListLength / 32;
};

// One warp for each row.
__global__ void __launch_bounds__(ShareGatherTraits::kThreads, 4)
    share_gather_kernel(const __grid_constant__ IndexGatherParams p) {
  using T = ShareGatherTraits;
  __shared__ KeyScratch scratch[T::kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * T::kWarps + warp;
  const IndexBatch& b = p.batch;
  const int top_k = p.selection.top_k;
  if (row >= b.total_rows) return;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  const int own = (rows.first_position + (row - rows.first_row) / b.heads) / kBlock;
  const int blocks = rows.rows > 0 ? own + 1 : 0;
  int32_t* out = p.selected + int64_t{row} * top_k;
  hopper::wait_for_previous_kernel();  // the metadata above is older than the kernel before
  hopper::let_next_kernel_start();
  if (blocks <= top_k) {
    if (lane < top_k) out[lane] = lane < blocks ? lane : -1;
    return;
  }
  const int64_t list = int64_t{row / b.heads} * p.index_heads + p.first_head + row % b.heads;
  uint64_t keys[T::kPerLane];
#pragma unroll
  for (int i = 0; i < T::kPerLane; ++i) {
    const int share = i * 2 + lane / kListLength;
    const int slot = (lane + i * kListLength / T::kPerLane) % kListLength;  // short lists reach every lane
    keys[i] = share < p.num_shares ? p.candidates[share * p.share_stride + list * kListLength + slot] : 0;
  }
  store_selection(warp_largest(keys, scratch[warp]), top_k, out);
}

}  // namespace msa::sm90
