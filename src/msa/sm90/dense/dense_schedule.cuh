// SPDX-License-Identifier: Apache-2.0
// The kernel that plans the tile kernel's work: one CTA cuts the batch into tiles, decides from all their
// lengths how long a part of a context may be, and lists the parts, longest first.
#pragma once

#include "msa/sm90/dense/dense_batch.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90::dense {

struct ScheduleTraits {
  static constexpr int kThreads = 1024, kWarps = kThreads / 32, kMinCtasPerSm = 1;
  static constexpr int kBins = 256;       // of item lengths
  static constexpr int kCandidates = 12;  // parts of kMinPartBlocks << i blocks; the last: no limit
  // What an item costs beside its blocks, in blocks: filling the pipeline, the epilogue; the partial's way to
  // memory and back.
  static constexpr float kItemCost = 1, kPartialCost = 3;
};

template <typename Traits>
struct ScheduleShared {
  int32_t warp_sum[Traits::kWarps];
  uint32_t work;  // blocks of all tiles of one KV head
  int32_t longest, num_tiles, num_partials, num_merges, part_blocks;
  // Per candidate: parts of split tiles, tiles that stay whole, blocks in items of at most half the length.
  int32_t partials[Traits::kCandidates], whole[Traits::kCandidates];
  uint32_t small_work[Traits::kCandidates];
  int32_t bin_count[Traits::kBins];  // then where the bin's next item goes
};

template <typename Traits>
struct Schedule {
  const DenseParams& p;
  const TileWorkspace& ws;
  ScheduleShared<Traits>& shared;
  int sms;

  template <typename Type>
  __device__ Type* at(int64_t offset) const {
    return reinterpret_cast<Type*>(static_cast<char*>(p.workspace) + offset);
  }

  // Sum over the threads before this one; `total` over all.
  __device__ int exclusive_sum(int value, int* total) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    __syncthreads();
    if (lane == 31) shared.warp_sum[warp] = sum;
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < Traits::kWarps; ++w) {
      if (w == warp) before = all;
      all += shared.warp_sum[w];
    }
    *total = all;
    return before + sum - value;
  }

  // Tiles of every request, and of the padding rows after them.
  __device__ void number_tiles() {
    const int tile_queries = kTileRows / p.group;
    int32_t* start = at<int32_t>(ws.tile_start);
    int before = 0;
    for (int base = 0; base <= p.num_requests; base += Traits::kThreads) {
      const int r = base + static_cast<int>(threadIdx.x);
      int tiles = 0;
      if (r <= p.num_requests) {
        const int end = r < p.num_requests ? first_query_of(p, r + 1) : p.total_queries;
        tiles = (max(0, end - first_query_of(p, r)) + tile_queries - 1) / tile_queries;
      }
      int total = 0;
      const int mine = before + exclusive_sum(tiles, &total);
      if (r <= p.num_requests) start[r] = mine;
      before += total;
    }
    if (threadIdx.x == 0) shared.num_tiles = before, start[p.num_requests + 1] = before;
    __syncthreads();
  }

  // The tile's request, queries and context.
  __device__ TileItem describe(int tile, int request) const {
    const int tile_queries = kTileRows / p.group;
    TileItem item = {};
    item.request = request;
    const int first = (tile - at<int32_t>(ws.tile_start)[request]) * tile_queries;
    const int begin = first_query_of(p, request);
    const int end = request < p.num_requests ? first_query_of(p, request + 1) : p.total_queries;
    item.first_query = begin + first;
    item.queries = static_cast<int16_t>(min(tile_queries, end - begin - first));
    item.partial = -1;
    const int length = request < p.num_requests ? p.seq_lens[request] : 0;
    if (length <= 0) return item;
    item.position = length - (end - begin) + first;
    item.blocks = max(0, item.position + item.queries - 1 + kBlock) / kBlock;
    item.written = min(kBlock, length - (item.blocks - 1) * kBlock);
    return item;
  }

  __device__ void measure_tiles() {
    const int32_t* start = at<int32_t>(ws.tile_start);
    uint32_t work = 0;
    int longest = 0;
    for (int t = threadIdx.x; t < shared.num_tiles; t += Traits::kThreads) {
      int low = 0, high = p.num_requests + 1;  // the last request that starts at or before the tile
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (start[middle] <= t ? low : high) = middle;
      }
      const int blocks = describe(t, low).blocks;
      at<int32_t>(ws.tile_request)[t] = low;
      at<int32_t>(ws.tile_blocks)[t] = blocks;
      work += blocks;
      longest = max(longest, blocks);
    }
    work = __reduce_add_sync(~0u, work);
    longest = __reduce_max_sync(~0u, longest);
    if (threadIdx.x % 32 == 0) atomicAdd(&shared.work, work), atomicMax(&shared.longest, longest);
    __syncthreads();
  }

  // Whether blocks are split, and where, follows from the whole batch.
  __device__ void choose_parts() {
    if (p.batch_invariant) {
      if (threadIdx.x == 0) shared.part_blocks = max(shared.longest, 1);
      __syncthreads();
      return;
    }
    const int candidate = threadIdx.x / 32;  // one for each warp
    if (candidate < Traits::kCandidates) {
      const int longest = shared.longest;
      const int part = candidate + 1 == Traits::kCandidates ? max(longest, 1) : kMinPartBlocks << candidate;
      const int half = min(part, longest) / 2;
      int partials = 0, whole = 0;
      uint32_t small_work = 0;
      for (int t = threadIdx.x % 32; t < shared.num_tiles; t += 32) {
        const int blocks = at<int32_t>(ws.tile_blocks)[t];
        const int parts = (blocks + part - 1) / part, rest = blocks - (parts - 1) * part;
        parts > 1 ? partials += parts : ++whole;
        if (rest <= half) small_work += rest;
      }
      partials = __reduce_add_sync(~0u, partials), whole = __reduce_add_sync(~0u, whole);
      small_work = __reduce_add_sync(~0u, small_work);
      if (threadIdx.x % 32 == 0)
        shared.partials[candidate] = partials, shared.whole[candidate] = whole,
        shared.small_work[candidate] = small_work;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const int c = min(static_cast<int>(threadIdx.x), Traits::kCandidates - 1);
      const float cost = cost_of(c);
      float best = cost;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) best = fminf(best, __shfl_xor_sync(~0u, best, d));
      // The longest parts of those that cost the same.
      const int chosen = 31 - __clz(__ballot_sync(~0u, cost == best));
      if (static_cast<int>(threadIdx.x) == chosen) shared.part_blocks = part_of(c);
    }
    __syncthreads();
  }

  __device__ int part_of(int candidate) const {
    const int longest = max(shared.longest, 1);
    return candidate + 1 == Traits::kCandidates ? longest : min(kMinPartBlocks << candidate, longest);
  }

  // The time that parts of this length would take, in blocks.
  __device__ float cost_of(int candidate) const {
    const int partials = shared.partials[candidate] * p.kv_heads,
              whole = shared.whole[candidate] * p.kv_heads;
    if (partials > ws.max_partials) return INFINITY;
    const float part = static_cast<float>(part_of(candidate)), heads = static_cast<float>(p.kv_heads);
    const float items = static_cast<float>(partials + whole), count = static_cast<float>(sms);
    const float work = heads * static_cast<float>(shared.work), rounds = items / count;
    // Short items fill the gaps that long ones leave at the end; where there are few, the last round is not
    // full.
    const bool filled = heads * static_cast<float>(shared.small_work[candidate]) * 4 >= count * part;
    const float gap = filled ? 0.0f : (ceilf(rounds) - rounds) * work / items;
    const float overhead =
        Traits::kPartialCost * static_cast<float>(partials) + Traits::kItemCost * static_cast<float>(whole);
    return fmaxf((work + overhead) / count + gap, part);
  }

  __device__ int bin_of(int blocks) const {
    const int longest = min(shared.part_blocks, shared.longest);
    return Traits::kBins - 1 - blocks * (Traits::kBins - 1) / max(longest, 1);
  }

  __device__ int parts_of(int blocks) const {
    return max(1, (blocks + shared.part_blocks - 1) / shared.part_blocks);
  }

  // `count` for each lane of `lanes`, all of which call this: to its bin, without a queue of atomics.
  // Returns where the lane's own begin.
  __device__ int add_to_bin(unsigned lanes, int bin, int count) {
    const unsigned peers = __match_any_sync(lanes, bin);
    const int leader = __ffs(peers) - 1, lane = threadIdx.x % 32;
    int base = 0;
    if (lane == leader) base = atomicAdd(&shared.bin_count[bin], __popc(peers) * count);
    return __shfl_sync(peers, base, leader) + __popc(peers & ((1u << lane) - 1)) * count;
  }

  __device__ void count_items() {
    const int part = shared.part_blocks, lane = threadIdx.x % 32;
    for (int first = threadIdx.x - lane; first < shared.num_tiles; first += Traits::kThreads) {
      const bool valid = first + lane < shared.num_tiles;
      const int blocks = valid ? at<int32_t>(ws.tile_blocks)[first + lane] : 0, parts = parts_of(blocks);
      const int full = __reduce_add_sync(~0u, parts - 1);
      if (lane == 0 && full > 0) atomicAdd(&shared.bin_count[bin_of(part)], full * p.kv_heads);
      const unsigned lanes = __ballot_sync(~0u, valid);
      if (valid) add_to_bin(lanes, bin_of(blocks - (parts - 1) * part), p.kv_heads);
      __syncwarp();
    }
    __syncthreads();
    int total = 0;
    const int mine = threadIdx.x < Traits::kBins ? shared.bin_count[threadIdx.x] : 0;
    const int before = exclusive_sum(mine, &total);
    if (threadIdx.x < Traits::kBins) shared.bin_count[threadIdx.x] = before;
    if (threadIdx.x == 0) at<TileHeader>(0)->num_items = total;
    __syncthreads();
  }

  // The parts of one tile, by a warp.
  __device__ void list_parts(TileItem item) {
    const int part = shared.part_blocks, lane = threadIdx.x % 32;
    const int blocks = item.blocks, parts = parts_of(blocks), written = item.written;
    int partial = 0;
    if (lane == 0) {
      partial = atomicAdd(&shared.num_partials, parts);
      at<TileMerge>(ws.merges)[atomicAdd(&shared.num_merges, 1)] = {item.first_query, item.queries, item.head,
                                                                    partial, parts};
    }
    partial = __shfl_sync(~0u, partial, 0);
    for (int first = 0; first < parts; first += 32) {
      const int i = first + lane;
      const unsigned lanes = __ballot_sync(~0u, i < parts);
      if (i < parts) {
        item.first_block = i * part;
        item.blocks = min(part, blocks - i * part);
        item.written = i + 1 == parts ? written : kBlock;
        item.partial = partial + i;
        at<TileItem>(ws.items)[add_to_bin(lanes, bin_of(item.blocks), 1)] = item;
      }
      __syncwarp();
    }
  }

  // Heads in turn, so that neighbours in the list read the same keys.
  __device__ void list_items() {
    const int32_t* request = at<int32_t>(ws.tile_request);
    const int lane = threadIdx.x % 32;
    for (int head = 0; head < p.kv_heads; ++head)
      for (int first = threadIdx.x - lane; first < shared.num_tiles; first += Traits::kThreads) {
        const int t = first + lane;
        TileItem item = {};
        if (t < shared.num_tiles) item = describe(t, request[t]);
        item.head = static_cast<int16_t>(head);
        const bool split = parts_of(item.blocks) > 1, whole = t < shared.num_tiles && !split;
        const unsigned lanes = __ballot_sync(~0u, whole);
        if (whole) at<TileItem>(ws.items)[add_to_bin(lanes, bin_of(item.blocks), 1)] = item;
        __syncwarp();
        for (unsigned left = __ballot_sync(~0u, split); left != 0; left &= left - 1) {
          const int tile = first + __ffs(left) - 1;
          item = describe(tile, request[tile]);
          item.head = static_cast<int16_t>(head);
          list_parts(item);
        }
      }
    __syncthreads();
    if (threadIdx.x == 0) at<TileHeader>(0)->num_merges = shared.num_merges, at<TileHeader>(0)->next_item = 0;
  }
};

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    schedule_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ TileWorkspace ws,
                    int sms) {
  __shared__ ScheduleShared<Traits> shared;
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared) / 4); i += Traits::kThreads)
    reinterpret_cast<int32_t*>(&shared)[i] = 0;
  hopper::let_next_kernel_start();
  hopper::wait_for_previous_kernel();
  Schedule<Traits> schedule = {p, ws, shared, sms};
  schedule.number_tiles();
  schedule.measure_tiles();
  schedule.choose_parts();
  schedule.count_items();
  schedule.list_items();
}

}  // namespace msa::sm90::dense
