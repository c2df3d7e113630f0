// SPDX-License-Identifier: Apache-2.0
// The two small kernels around index_tile: the schedule that cuts a step's work into pieces, and the merge of
// the pieces' lists into each row's selection. The best of all blocks are among the best of each piece, so
// the merge is exact.
#pragma once

#include "msa/sm90/index/index_key.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

struct IndexScheduleTraits {
  static constexpr int kThreads = 1024, kWarps = kThreads / 32;
};

// Inclusive sum over the CTA; returns the total through `total`.
__device__ __forceinline__ int block_inclusive_sum(int value, int* warp_totals, int* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int below = __shfl_up_sync(kFullWarp, value, distance);
    if (lane >= distance) value += below;
  }
  if (lane == 31) warp_totals[warp] = value;
  __syncthreads();
  if (warp == 0) {
    int sum = warp_totals[lane];
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(kFullWarp, sum, distance);
      if (lane >= distance) sum += below;
    }
    warp_totals[lane] = sum;
  }
  __syncthreads();
  *total = warp_totals[31];
  const int result = value + (warp > 0 ? warp_totals[warp - 1] : 0);
  __syncthreads();
  return result;
}

// The first `blocks` of a request's logical blocks, as a place in the list of a share.
__device__ __forceinline__ int place_in_share(const IndexShareList& share, const IndexBatch& b, int request,
                                              int blocks) {
  const int32_t* ids = share.blocks + int64_t{request} * b.max_blocks;
  int low = 0, high = share.counts[request];
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ids[middle] < blocks) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <bool kShare>
__global__ void __launch_bounds__(IndexScheduleTraits::kThreads, 1)
    index_schedule_kernel(const __grid_constant__ IndexBatch b, const __grid_constant__ IndexSchedule s,
                          const __grid_constant__ IndexShareList share) {
  __shared__ int first_tile[kMaxIndexRequests];
  __shared__ int warp_totals[32];
  const int thread = threadIdx.x;
  hopper::wait_for_previous_kernel();
  int num_tiles = 0;
  for (int base = 0; base < b.num_requests; base += IndexScheduleTraits::kThreads) {
    const int request = base + thread;
    const int rows = request < b.num_requests ? request_rows(b, request).rows : 0;
    const int tiles = (rows + s.tile_rows - 1) / s.tile_rows;
    int total;
    const int through = block_inclusive_sum(tiles, warp_totals, &total);
    if (request < b.num_requests) {
      first_tile[request] = num_tiles + through - tiles;
      s.request_tile[request] = first_tile[request];
    }
    num_tiles += total;
  }
  __syncthreads();

  for (int t = thread; t < num_tiles; t += IndexScheduleTraits::kThreads) {
    int low = 0, high = b.num_requests - 1;  // the last request whose first tile is at or before t
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_tile[middle] <= t) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const RequestRows rows = request_rows(b, low);
    const int first_row = (t - first_tile[low]) * s.tile_rows;
    const int count = min(s.tile_rows, rows.rows - first_row);
    const int last_position = rows.first_position + (first_row + count - 1) / b.heads;
    int blocks = last_position / kBlock + 1;
    if constexpr (kShare) blocks = place_in_share(share, b, low, blocks);
    s.tiles[t] = {low, first_row, count, blocks};
  }
  __syncthreads();

  for (int window = 0; window < s.windows; ++window) {
    int32_t* prefix = s.prefix + int64_t{window} * (s.tile_cap + 1);
    int before = 0;
    for (int base = 0; base < num_tiles; base += IndexScheduleTraits::kThreads) {
      const int t = base + thread;
      const int blocks =
          t < num_tiles ? min(max(s.tiles[t].blocks - window * s.window_blocks, 0), s.window_blocks) : 0;
      int total;
      const int through = block_inclusive_sum(blocks, warp_totals, &total);
      if (t < num_tiles) prefix[t] = before + through - blocks;
      before += total;
    }
    if (thread == 0) prefix[num_tiles] = before;
    __syncthreads();
    const int64_t total = before;
    for (int cta = thread; cta < s.ctas; cta += IndexScheduleTraits::kThreads) {
      int unit = static_cast<int>(total * cta / s.ctas);
      const int end = static_cast<int>(total * (cta + 1) / s.ctas);
      int t = 0,
          high = max(num_tiles - 1, 0);  // the tile that holds `unit`: the last that begins at or before it
      while (t < high) {
        const int middle = (t + high + 1) / 2;
        if (prefix[middle] <= unit) {
          t = middle;
        } else {
          high = middle - 1;
        }
      }
      const int first = t + cta;
      int count = 0;
      for (; unit < end; ++t, ++count) {
        const IndexTile tile = s.tiles[t];
        const RequestRows rows = request_rows(b, tile.request);
        const int blocks = min(end, prefix[t + 1]) - unit;
        s.pieces[int64_t{window} * (s.tile_cap + s.ctas) + t + cta] = {
            tile.request,
            tile.first_row,
            tile.rows,
            window * s.window_blocks + unit - prefix[t],
            blocks,
            rows.first_row + tile.first_row,
            rows.first_position,
            0};
        unit += blocks;
      }
      s.cta_pieces[window * s.ctas + cta] = {first, count};
    }
    for (int t = thread; t < num_tiles; t += IndexScheduleTraits::kThreads) {
      // The CTA that holds unit u is the largest c with floor(c total / ctas) <= u.
      int2 range = {0, -1};
      if (prefix[t] < prefix[t + 1])
        range = {static_cast<int>((int64_t{prefix[t] + 1} * s.ctas - 1) / total),
                 static_cast<int>((int64_t{prefix[t + 1]} * s.ctas - 1) / total)};
      s.tile_ctas[int64_t{window} * s.tile_cap + t] = range;
    }
  }
}

template <int kWarpsPerRow, bool kOfShare = false>
struct IndexMergeTraits {
  static constexpr bool kShare = kOfShare;      // leaves keys instead of a selection
  static constexpr int kPerRow = kWarpsPerRow;  // warps that share a row: 1, or all of the CTA's
  static constexpr int kWarps = 8, kThreads = kWarps * 32, kPerLane = 4, kRows = kWarps / kPerRow;
  static constexpr int kPiecesPerRound = kPerLane * 32 / kListLength;
  static_assert(kPerRow == 1 || kPerRow == kWarps);
};

// The row's pieces follow from the schedule's sums alone.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 4)
    index_merge_kernel(const __grid_constant__ IndexMergeParams p) {
  __shared__ uint64_t lists[T::kWarps][kListLength];
  __shared__ KeyScratch scratch[T::kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.x * T::kRows + (T::kPerRow == 1 ? warp : 0);
  const IndexBatch& b = p.batch;
  const IndexSchedule& s = p.schedule;
  if (row >= b.total_rows) return;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  hopper::wait_for_previous_kernel();  // the metadata above is older than the kernel before
  hopper::let_next_kernel_start();
  uint64_t top = 0;
  if (rows.rows > 0) {
    const int in_request = row - rows.first_row;
    const int t = s.request_tile[request] + in_request / s.tile_rows, in_tile = in_request % s.tile_rows;
    for (int window = 0; window < s.windows; ++window) {
      const int2 range = s.tile_ctas[int64_t{window} * s.tile_cap + t];
      if (range.y < 0) break;
      const int64_t first_piece = int64_t{window} * (s.tile_cap + s.ctas) + t;
      const int first = range.x + (T::kPerRow == 1 ? 0 : warp * T::kPiecesPerRound);
      for (int base = first; base <= range.y; base += T::kPerRow * T::kPiecesPerRound) {
        uint64_t keys[T::kPerLane + 1];
#pragma unroll
        for (int i = 0; i < T::kPerLane; ++i) {
          const int cta = base + i * 2 + lane / kListLength;
          const int slot =
              (lane + i * kListLength / T::kPerLane) % kListLength;  // short lists reach every lane
          const int64_t piece = first_piece + cta;
          keys[i] = 0;
          // A CTA between the first and the last may have an empty share where there are fewer blocks than
          // CTAs.
          if (cta <= range.y && s.cta_pieces[window * s.ctas + cta].y > 0 && slot < s.pieces[piece].blocks) {
            const uint64_t key = p.lists[(piece * s.tile_rows + in_tile) * kListLength + slot];
            keys[i] = key & ~uint64_t{kListLength - 1};  // without the slot: 0 is no candidate again
          }
        }
        keys[T::kPerLane] = top;
        top = warp_largest(keys, scratch[warp]);
      }
    }
  }
  if constexpr (T::kPerRow > 1) top = cta_largest<T::kWarps>(top, lists, scratch[warp]);
  if (T::kPerRow > 1 && warp != 0) return;
  if constexpr (T::kShare) {
    if (lane < kListLength) p.candidates[int64_t{row} * kListLength + lane] = top;
  } else {
    store_selection(top, p.selection.top_k, p.selected + int64_t{row} * p.selection.top_k);
  }
}

template <int kKeysPerLane>
struct IndexPickTraits {
  static constexpr int kWarps = 8, kThreads = kWarps * 32, kPerLane = kKeysPerLane;
};

// The selection from all of a row's scores, one warp per row.
template <typename T>
__global__ void __launch_bounds__(T::kThreads, 4)
    index_pick_kernel(const __grid_constant__ IndexMergeParams p) {
  __shared__ KeyScratch scratch[T::kWarps];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * T::kWarps + warp;
  const IndexBatch& b = p.batch;
  if (row >= b.total_rows) return;
  const int request = request_of_row(b, row);
  const RequestRows rows = request >= 0 ? request_rows(b, request) : RequestRows{};
  int32_t* out = p.selected + int64_t{row} * p.selection.top_k;
  const int own = (rows.first_position + (row - rows.first_row) / b.heads) / kBlock;
  const int blocks = rows.rows > 0 ? own + 1 : 0;
  if (blocks <= p.selection.top_k) {
    hopper::wait_for_previous_kernel();
    if (lane < p.selection.top_k) out[lane] = lane < blocks ? lane : -1;
    return;
  }
  hopper::wait_for_previous_kernel();  // the metadata above is older than the kernel before
  hopper::let_next_kernel_start();
  const float* scores = p.scores + int64_t{row} * b.max_blocks;
  uint64_t keys[T::kPerLane];
#pragma unroll
  for (int i = 0; i < T::kPerLane; ++i) {
    const int block = i * 32 + lane;
    keys[i] = block < blocks ? make_key(scores[block], block, own, p.selection) : 0;
  }
  store_selection(warp_largest(keys, scratch[warp]), p.selection.top_k, out);
}

}  // namespace msa::sm90
