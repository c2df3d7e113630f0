// SPDX-License-Identifier: Apache-2.0
// Tiles of neighbouring queries, and the kernel that decides how each attends: it takes the union of a tile's
// selections, counts it, and writes it down where it is short enough.
//
// Tiles begin anew at each request. Tile j of request r has the number cu_seqlens_q[r] / tile_queries + r +
// j: never taken twice, found again by bisection, and bounded by what the host knows.
#pragma once

#include <cuda_runtime.h>

#include "msa/sm90/attend/attend_prefill.h"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

enum TileKind : int32_t { kTileOuter = -1, kTileEmpty = -2 };

// Both lists have the last units first: theirs are the longer unions, and short work at the end lets the CTAs
// end together; and their partials are the last to be written, so still in the L2 when merging begins.
struct TileLists {
  int32_t num_union, next_union;  // units that walk their union: made, taken
  int32_t num_outer;
  int32_t ready;  // 1: the lists are made
};

// False where the number is a gap.
__device__ inline bool find_tile(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws, int tile,
                                 int& request, QueryTile& out) {
  const int size = ws.tile_queries;
  int high = p.num_requests;
  request = 0;
  while (high - request > 1) {
    const int middle = (request + high) / 2;
    (p.cu_seqlens_q[middle] / size + middle <= tile ? request : high) = middle;
  }
  const int begin = p.cu_seqlens_q[request], end = p.cu_seqlens_q[request + 1];
  const int offset = (tile - begin / size - request) * size;
  out.first_row = begin + offset, out.rows = min(size, end - begin - offset);
  out.seq_len = p.seq_lens[request], out.first_position = out.seq_len - (end - begin) + offset;
  return offset >= 0 && out.rows > 0;
}

static_assert(sizeof(UnionTile) == 2 * sizeof(int4), "taken in two loads");

struct PlanTraits {
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kMinCtasPerSm = 4, kBlock = 128;
};

__host__ __device__ inline int plan_words(int max_blocks) {
  return (max_blocks + 31) / 32;
}

// Shared memory of one warp: two words for each 32 blocks, three for each entry of the tile.
__host__ __device__ inline int plan_warp_words(int max_blocks, int entries) {
  return 2 * plan_words(max_blocks) + 3 * entries;
}

// One warp's work on one unit.
struct PlanWarp {
  const AttendPrefillParams& p;
  const AttendPrefillWorkspace& ws;
  uint32_t* bits;    // [words] blocks of the union
  uint32_t* before;  // [words] blocks of the union in earlier words
  uint32_t* mask;    // [entries][2]
  int32_t* block;    // [entries]
  int head, lane;

  // Calls visit(query of the tile, block) for every choice, a thread's loads in flight together.
  template <typename Visit>
  __device__ void each(const QueryTile& tile, const Visit& visit) const {
    const int blocks = (tile.seq_len + PlanTraits::kBlock - 1) / PlanTraits::kBlock;
    constexpr int kBatch = 6;
    const int choices = tile.rows * p.top_k;
    for (int first = lane; first < choices; first += 32 * kBatch) {
      int id[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int i = first + 32 * n;
        const int64_t row = tile.first_row + i / p.top_k;
        id[n] = i < choices ? p.selected[(row * p.kv_heads + head) * p.top_k + i % p.top_k] : -1;
      }
#pragma unroll
      for (int n = 0; n < kBatch; ++n)
        if (id[n] >= 0 && id[n] < blocks) visit((first + 32 * n) / p.top_k, id[n]);
    }
    __syncwarp();
  }

  __device__ void zero_rows(int begin, int end) const {
    const int pieces = p.group * 128 / 8;
    for (int row = begin; row < end; ++row)
      for (int i = lane; i < pieces; i += 32)
        reinterpret_cast<uint4*>(p.out)[(int64_t{row} * p.kv_heads + head) * pieces + i] =
            make_uint4(0, 0, 0, 0);
  }

  // The union in ascending order with its masks; returns its size.
  __device__ int unite(const QueryTile& tile, int wg_queries, int& choices) {
    const int words = (tile.seq_len + 32 * PlanTraits::kBlock - 1) / (32 * PlanTraits::kBlock);
    for (int w = lane; w < words; w += 32) bits[w] = 0;
    __syncwarp();
    int mine = 0;
    each(tile, [&](int, int id) { ++mine, atomicOr(&bits[id / 32], 1u << id % 32); });
    choices = __reduce_add_sync(~0u, mine);
    int size = 0;
    for (int first = 0; first < words; first += 32) {
      const int w = first + lane, count = w < words ? __popc(bits[w]) : 0;
      int sum = count;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, sum, d);
        if (lane >= d) sum += other;
      }
      if (w < words) before[w] = size + sum - count;
      size += __shfl_sync(~0u, sum, 31);
    }
    for (int i = lane; i < 2 * size; i += 32) mask[i] = 0;
    __syncwarp();
    each(tile, [&](int query, int id) {
      const int at = before[id / 32] + __popc(bits[id / 32] & ((1u << id % 32) - 1));
      const int bit = query / wg_queries * 16 + query % wg_queries;
      block[at] = id;
      atomicOr(&mask[2 * at + bit / 32], 1u << bit % 32);
    });
    return size;
  }

  // Blocks to walk, summed over the warpgroups, each of which skips those that none of its queries chose.
  __device__ int count_walked(int size) const {
    int walked = 0;
    for (int i = lane; i < size; i += 32)
      walked += ((mask[2 * i] & 0xffff) != 0) + (mask[2 * i] >> 16 != 0) + (mask[2 * i + 1] != 0);
    return __reduce_add_sync(~0u, walked);
  }

  __device__ void plan(int tile_number, int wg_queries) {
    const int64_t unit = int64_t{tile_number} * p.kv_heads + head;
    char* base = static_cast<char*>(p.workspace);
    int32_t* union_size = reinterpret_cast<int32_t*>(base + ws.union_size) + unit;
    QueryTile tile = {};
    int request = 0;
    const bool found = p.num_requests > 0 && find_tile(p, ws, tile_number, request, tile);
    if (lane == 0) reinterpret_cast<QueryTile*>(base + ws.tiles)[unit] = tile;
    if (!found || tile.seq_len <= 0) {
      if (found) zero_rows(tile.first_row, tile.first_row + tile.rows);
      if (lane == 0) *union_size = kTileEmpty;
      return;
    }
    int choices;
    const int size = unite(tile, wg_queries, choices);
    const bool walk =
        static_cast<float>(count_walked(size) * wg_queries) <= p.union_limit * static_cast<float>(choices);
    if (lane == 0) *union_size = walk ? size : kTileOuter;
    if (!walk) return;
    auto* out = reinterpret_cast<int4*>(base + ws.union_blocks) + unit * ws.tile_queries * p.top_k;
    for (int i = lane; i < size; i += 32) {
      const int page = p.block_table[int64_t{request} * p.max_blocks + block[i]];
      const int kv_row = (page * p.kv_heads + head) * 2 * PlanTraits::kBlock;
      out[i] = make_int4(block[i] * PlanTraits::kBlock, kv_row, static_cast<int>(mask[2 * i]),
                         static_cast<int>(mask[2 * i + 1]));
    }
  }
};

// One warp for each unit; dynamic shared memory: plan_warp_words() for each warp.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    plan_tiles_kernel(const __grid_constant__ AttendPrefillParams p,
                      const __grid_constant__ AttendPrefillWorkspace ws, int wg_queries) {
  extern __shared__ uint32_t plan_shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int words = plan_words(p.max_blocks), entries = ws.tile_queries * p.top_k;
  uint32_t* mine = plan_shared + warp * plan_warp_words(p.max_blocks, entries);
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  if (blockIdx.x == 0 && threadIdx.x == 0)
    reinterpret_cast<TileLists*>(static_cast<char*>(p.workspace) + ws.lists)->ready = 0;
  const int units = ws.num_tiles * p.kv_heads, unit = blockIdx.x * Traits::kWarps + warp;
  const int warps = gridDim.x * Traits::kWarps;
  PlanWarp plan = {p,
                   ws,
                   mine,
                   mine + words,
                   mine + 2 * words,
                   reinterpret_cast<int32_t*>(mine + 2 * words + 2 * entries),
                   unit % p.kv_heads,
                   lane};
  if (unit < units) plan.plan(unit / p.kv_heads, wg_queries);
  for (int64_t i = int64_t{p.cu_seqlens_q[p.num_requests]} * p.kv_heads + unit;
       i < int64_t{p.total_queries} * p.kv_heads; i += warps) {
    plan.head = static_cast<int>(i % p.kv_heads);
    plan.zero_rows(static_cast<int>(i / p.kv_heads), static_cast<int>(i / p.kv_heads) + 1);
  }
}

}  // namespace msa::sm90
