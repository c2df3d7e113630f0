// SPDX-License-Identifier: Apache-2.0
// Inverts the selection of one window of queries: for each block, the list of queries that chose it, cut into
// work items. The order within a list is arbitrary (atomics): nothing downstream depends on it, since a
// query's partial result has its own place, given by its slot. Queries whose tile walks its union are left
// out. One further CTA makes the lists of both kinds of tiles.
#pragma once

#include <cuda_runtime.h>

#include "msa/sm90/attend/attend_prefill.h"
#include "msa/sm90/attend/query_tile.cuh"
#include "sm90/memory.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

inline constexpr int kEntryRowBits = 28;  // entry = query row | slot << 28
inline constexpr int kEntryRowMask = (1 << kEntryRowBits) - 1;

struct InvertTraits {
  static constexpr int kThreads = 1024, kWarps = kThreads / 32, kBlock = 128;
};

struct InvertShared {
  int2 warp_totals[InvertTraits::kWarps];
};

// Exclusive prefix sums of (entries, items) over the CTA; `total` becomes the sums over all.
__device__ inline int2 scan_exclusive(int2 value, InvertShared& shared, int2& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int2 sum = value;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int x = __shfl_up_sync(~0u, sum.x, d), y = __shfl_up_sync(~0u, sum.y, d);
    if (lane >= d) sum.x += x, sum.y += y;
  }
  if (lane == 31) shared.warp_totals[warp] = sum;
  __syncthreads();
  int2 before = {0, 0};
  total = {0, 0};
#pragma unroll
  for (int w = 0; w < InvertTraits::kWarps; ++w) {
    const int2 t = shared.warp_totals[w];
    if (w < warp) before.x += t.x, before.y += t.y;
    total.x += t.x, total.y += t.y;
  }
  __syncthreads();
  return {before.x + sum.x - value.x, before.y + sum.y - value.y};
}

// Four slots of a row's selection, -1 past top_k.
__device__ inline int4 load_four(const int32_t* selected, int first, int top_k) {
  if (top_k % 4 == 0) return *reinterpret_cast<const int4*>(selected + first);
  int4 out = {selected[first], -1, -1, -1};
  if (first + 1 < top_k) out.y = selected[first + 1];
  if (first + 2 < top_k) out.z = selected[first + 2];
  if (first + 3 < top_k) out.w = selected[first + 3];
  return out;
}

// The queries of one request that lie in a window, all for one KV head.
struct InvertSegment {
  const int32_t* selected;  // of the first row; rows are `stride` apart
  int64_t stride;
  int rows, first_row, top_k, blocks;
  const int32_t* union_size;  // of the request's first tile; tiles are `tile_stride` apart
  int tile_stride, tile_queries;
  int skipped;  // rows of the request before this segment

  __device__ bool goes_by_block(int row) const {
    return union_size[(skipped + row) / tile_queries * tile_stride] == kTileOuter;
  }

  // Calls visit(row, slot, block) for every chosen block, a thread's loads in flight together.
  template <typename Visit>
  __device__ void each(const Visit& visit) const {
    constexpr int kBatch = 4;
    const int fours_per_row = (top_k + 3) / 4, fours = rows * fours_per_row;
    for (int i = threadIdx.x; i < fours; i += InvertTraits::kThreads * kBatch) {
      int4 four[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int at = i + n * InvertTraits::kThreads;
        four[n] = make_int4(-1, -1, -1, -1);
        if (at < fours && goes_by_block(at / fours_per_row))
          four[n] = load_four(selected + at / fours_per_row * stride, at % fours_per_row * 4, top_k);
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int at = i + n * InvertTraits::kThreads, row = at / fours_per_row,
                  slot = at % fours_per_row * 4;
        const int ids[4] = {four[n].x, four[n].y, four[n].z, four[n].w};
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (ids[j] >= 0 && ids[j] < blocks) visit(row, slot + j, ids[j]);
      }
    }
  }
};

// How many partials each query of the segment will get.
__device__ inline void count_slots(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws,
                                   const InvertSegment& segment, int head) {
  char* base = static_cast<char*>(p.workspace);
  for (int i = threadIdx.x; i < segment.rows; i += InvertTraits::kThreads) {
    if (!segment.goes_by_block(i)) continue;
    int count = 0;
    for (int s = 0; s < p.top_k; s += 4) {
      const int4 four = load_four(segment.selected + i * segment.stride, s, p.top_k);
      for (const int id : {four.x, four.y, four.z, four.w}) count += id >= 0 && id < segment.blocks;
    }
    const int row = segment.first_row + i;
    const int64_t unit = int64_t{row} * p.kv_heads + head;
    reinterpret_cast<int32_t*>(base + ws.counts)[unit] = count;
  }
}

// The lists of both kinds of units; see TileLists.
__device__ inline void list_tiles(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws,
                                  InvertShared& shared) {
  char* base = static_cast<char*>(p.workspace);
  const auto* union_size = reinterpret_cast<const int32_t*>(base + ws.union_size);
  const auto* tiles = reinterpret_cast<const QueryTile*>(base + ws.tiles);
  auto* union_units = reinterpret_cast<UnionTile*>(base + ws.union_units);
  auto* outer_units = reinterpret_cast<int4*>(base + ws.outer_units);
  const int units = ws.num_tiles * p.kv_heads;
  int2 done = {0, 0};
  for (int first = 0; first < units; first += InvertTraits::kThreads) {
    const int unit = units - 1 - first - static_cast<int>(threadIdx.x);
    const int size = unit >= 0 ? union_size[unit] : kTileEmpty;
    int2 total;
    const int2 at = scan_exclusive({size >= 0, size == kTileOuter}, shared, total);
    if (size >= 0) union_units[done.x + at.x] = {tiles[unit], unit, size, unit % p.kv_heads, 0};
    if (size == kTileOuter)
      outer_units[done.y + at.y] = make_int4(tiles[unit].first_row, tiles[unit].rows, unit % p.kv_heads, 0);
    done.x += total.x, done.y += total.y;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x > 0) return;
  auto* lists = reinterpret_cast<TileLists*>(base + ws.lists);
  lists->num_union = done.x, lists->next_union = 0, lists->num_outer = done.y;
  hopper::store_release(&lists->ready, 1);
}

// Grid (1 + windows, kv_heads); dynamic shared memory: int32 [max_blocks].
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, 1)
    invert_kernel(const __grid_constant__ AttendPrefillParams p,
                  const __grid_constant__ AttendPrefillWorkspace ws, int tile_queries, int max_item_queries) {
  extern __shared__ int32_t counts[];
  __shared__ InvertShared shared;
  const int window = static_cast<int>(blockIdx.x) - 1, head = blockIdx.y, unit = window * p.kv_heads + head;
  char* base = static_cast<char*>(p.workspace);
  const int64_t capacity = int64_t{ws.window} * p.top_k;
  auto* items = reinterpret_cast<int4*>(base + ws.items) + unit * capacity;
  auto* entries = reinterpret_cast<int32_t*>(base + ws.entries) + unit * capacity;
  // The last items of all decide when the last CTA ends.
  if (window + 1 == ws.num_windows) max_item_queries = max(max_item_queries / 4, tile_queries);

  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  if (window < 0) {
    if (head == 0) list_tiles(p, ws, shared);
    return;
  }
  const int window_begin = window * ws.window, rows_end = min(window_begin + ws.window, p.total_queries);
  const int window_end = min(rows_end, p.cu_seqlens_q[p.num_requests]);
  int request = 0, high = p.num_requests;  // the last request that starts at or before the window
  while (high - request > 1) {
    const int middle = (request + high) / 2;
    (p.cu_seqlens_q[middle] <= window_begin ? request : high) = middle;
  }
  int num_entries = 0, num_items = 0;
  for (; request < p.num_requests && p.cu_seqlens_q[request] < window_end; ++request) {
    const int end_of_request = p.cu_seqlens_q[request + 1], seq_len = p.seq_lens[request];
    const int begin = max(window_begin, p.cu_seqlens_q[request]), end = min(window_end, end_of_request);
    if (begin >= end || seq_len <= 0) continue;
    const int blocks = (seq_len + Traits::kBlock - 1) / Traits::kBlock;
    const InvertSegment segment = {p.selected + (int64_t{begin} * p.kv_heads + head) * p.top_k,
                                   int64_t{p.kv_heads} * p.top_k,
                                   end - begin,
                                   begin,
                                   p.top_k,
                                   blocks,
                                   reinterpret_cast<const int32_t*>(base + ws.union_size) +
                                       (p.cu_seqlens_q[request] / ws.tile_queries + request) * p.kv_heads +
                                       head,
                                   p.kv_heads,
                                   ws.tile_queries,
                                   begin - p.cu_seqlens_q[request]};
    for (int b = threadIdx.x; b < blocks; b += Traits::kThreads) counts[b] = 0;
    __syncthreads();
    segment.each([&](int, int, int block) { atomicAdd(&counts[block], 1); });
    count_slots(p, ws, segment, head);
    __syncthreads();
    const int share = (blocks + Traits::kThreads - 1) / Traits::kThreads;
    const int first = min(static_cast<int>(threadIdx.x) * share, blocks), last = min(first + share, blocks);
    int2 sum = {0, 0};
    for (int b = first; b < last; ++b)
      sum.x += counts[b], sum.y += (counts[b] + max_item_queries - 1) / max_item_queries;
    int2 total;
    int2 at = scan_exclusive(sum, shared, total);
    at.x += num_entries, at.y += num_items;
    for (int b = first; b < last; ++b) {
      const int count = counts[b];
      counts[b] = at.x;
      if (count == 0) continue;
      const int page = p.block_table[int64_t{request} * p.max_blocks + b];
      const int visible = min(Traits::kBlock, seq_len - b * Traits::kBlock);
      for (int done = 0; done < count; done += max_item_queries)
        items[at.y++] = make_int4(page, at.x + done, min(max_item_queries, count - done) | visible << 16,
                                  seq_len - end_of_request - b * Traits::kBlock);
      at.x += count;
    }
    __syncthreads();
    segment.each([&](int row, int slot, int block) {
      const uint32_t entry = static_cast<uint32_t>(begin + row) | static_cast<uint32_t>(slot)
                                                                      << kEntryRowBits;
      entries[atomicAdd(&counts[block], 1)] = static_cast<int32_t>(entry);
    });
    __syncthreads();
    num_entries += total.x, num_items += total.y;
  }
  if (threadIdx.x == 0) {
    reinterpret_cast<int32_t*>(base + ws.num_items)[unit] = num_items;
    reinterpret_cast<int32_t*>(base + ws.next_item)[unit] = 0;
  }
}

}  // namespace msa::sm90
