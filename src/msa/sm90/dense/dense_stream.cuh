// SPDX-License-Identifier: Apache-2.0
// The stream kernel: each CTA goes through an equal share of the keys of all requests. Its eight warps take
// tiles of them in turn; each is its own producer and consumer, with a private ring of places that the copy
// engine fills, over the ends of requests too, and even while the kernel before still runs: keys of earlier
// steps are older than that. Where a request or the share ends the warps merge their sums.
#pragma once

#include "msa/sm90/dense/dense_stream_warp.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90::dense {

// The items of a CTA's share of the stages, in order. Every lane of a warp does the same.
struct StreamShare {
  const DenseParams& p;
  int low, high;             // stages
  int request, head, start;  // the next item's, or one that ends before the share; its first stage

  __device__ StreamShare(const DenseParams& params, int lane) : p(params), request(0), head(0), start(0) {
    int total = 0;
#pragma unroll 4
    for (int r = lane; r < p.num_requests; r += 32) total += stages_of(p, r);
    total = __reduce_add_sync(~0u, total) * p.kv_heads;
    // Block tables may hold far more than the contexts: no CTA whose share would be empty takes part.
    const int cta = static_cast<int>(blockIdx.x), ctas = min(static_cast<int>(gridDim.x), total);
    low = cta < ctas ? share_begin(cta, ctas, total) : 0;
    high = cta < ctas ? share_begin(cta + 1, ctas, total) : 0;
    for (; request < p.num_requests; request += 32) {
      const int own = request + lane < p.num_requests ? stages_of(p, request + lane) * p.kv_heads : 0;
      int end = own;  // of the requests up to this lane's
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int before = __shfl_up_sync(~0u, end, d);
        if (lane >= d) end += before;
      }
      if (const unsigned after = __ballot_sync(~0u, start + end > low); after != 0) {
        const int first = __ffs(after) - 1;
        request += first;
        start += __shfl_sync(~0u, end - own, first);
        return;
      }
      start += __shfl_sync(~0u, end, 31);
    }
  }

  __device__ bool next(StreamItem& item) {
    while (start < high) {
      const int from = start, all = stages_of(p, request);
      item.request = request, item.head = head;
      start += all;
      if (++head == p.kv_heads) head = 0, ++request;
      const int begin = max(low - from, 0), end = min(high - from, all);
      item.first_query = first_query_of(p, item.request);
      item.queries = first_query_of(p, item.request + 1) - item.first_query;
      if (begin >= end || item.queries <= 0) continue;
      const int length = p.seq_lens[item.request];
      item.first_key = begin * kStageKeys;
      item.keys = max(0, min(length, end * kStageKeys) - item.first_key);
      item.position = length - item.queries;
      item.partial = begin == 0 && end == all ? -1 : 2 * static_cast<int>(blockIdx.x) + (begin == 0 ? 1 : 0);
      return true;
    }
    return false;
  }
};

// The tiles of an item go to the warps in turn, and on over the ends of items, a stage at a time: a warp's
// first key of an item that follows `stages` others.
template <typename Traits>
__device__ __forceinline__ int first_key_of(int warp, int stages) {
  constexpr int kStageWarps = kStageKeys / Traits::kTileKeys, kTeams = Traits::kWarps / kStageWarps;
  return (warp / kStageWarps + stages * (kTeams - 1)) % kTeams * kStageKeys +
         warp % kStageWarps * Traits::kTileKeys;
}
__device__ __forceinline__ int stages_in(const StreamItem& item) {
  return (item.keys + kStageKeys - 1) / kStageKeys;
}

// Fills a warp's ring in the order of its use: the tiles of an item, a place left free for the sums, the
// tiles of the next item.
template <typename Traits>
struct StreamFetch {
  const DenseParams& p;
  const CUtensorMap& map;
  unsigned char (*ring)[Traits::kPlaceBytes];
  uint64_t* full;
  StreamShare share;
  int warp, lane;
  StreamItem item = {};
  int place = 0, stages = 0;    // stages before the item
  int key = 0;                  // the next, from the item's first
  bool ended = false;           // the place for the item's sums has passed
  bool more = true;             // whether there is an item
  int pages = 0, window = -32;  // the lanes hold the pages of 32 blocks from this

  __device__ void open() {
    more = share.next(item);
    key = first_key_of<Traits>(warp, stages);
    stages += stages_in(item);
    ended = false;
    window = -32;
  }

  __device__ void next() {
    if (more && ended) open();
    if (!more) return;
    if (key < item.keys) {
      fetch(item.first_key + key);
      key += Traits::kKeyDistance;
    } else {
      ended = true;
      if (lane == 0) hopper::mbarrier_arrive(&full[place]);  // the ring's turns go on
    }
    if (++place == Traits::kPlaces) place = 0;
  }

  __device__ void fetch(int first) {
    const int block = first / kBlock;
    if (block >= window + 32) {
      window = block;
      const int at = block + lane;
      pages = at * kBlock < item.first_key + item.keys
                  ? p.block_table[int64_t{item.request} * p.max_blocks + at]
                  : 0;
    }
    const int row =
        (__shfl_sync(~0u, pages, block - window) * p.kv_heads + item.head) * 2 * kBlock + first % kBlock;
    if (first + Traits::kTileKeys > item.position) hopper::wait_for_previous_kernel();  // it may write these
    if (lane == 0) {
      hopper::mbarrier_arrive_expect(&full[place], Traits::kPlaceBytes);
      hopper::tma_load_3d(ring[place], &map, &full[place], 0, row, 0, hopper::kEvictFirst);
      hopper::tma_load_3d(ring[place] + Traits::kPlaceBytes / 2, &map, &full[place], 0, row + kBlock, 0,
                          hopper::kEvictFirst);
    }
    __syncwarp();
  }
};

// What a warp hands to finish(): relative to the warp's own maximum, in a place of its ring.
template <typename Traits>
__device__ inline void hand_over(StreamShared<Traits>& shared, const StreamWarp<Traits>& state, int place,
                                 int warp, int lane) {
  const int t = lane % 4;
  if (lane == 0) shared.out_place[warp] = place;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = state.sum[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const int row = lane / 4 + 8 * r;
    if (t == 0) shared.warp_max[warp][row] = state.max[r], shared.warp_sum[warp][row] = total;
#pragma unroll
    for (int j = 0; j < 16; j += 4)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = t * 2 + i, e = 2 * r + i;
        const int channel = Traits::kFp8 ? column * 16 + j : j / 8 * 64 + column * 8 + j % 8;
        *sums_of(shared, warp, place, row, channel) =
            make_float4(state.out[j][e], state.out[j + 1][e], state.out[j + 2][e], state.out[j + 3][e]);
      }
  }
}

// The warps' sums become the output, or a part of it. One row per warp, four channels per lane.
template <typename Traits>
__device__ inline void finish(const DenseParams& p, const StreamWorkspace& ws, StreamShared<Traits>& shared,
                              const StreamItem& item, int warp, int lane) {
  char* base = static_cast<char*>(p.workspace);
  const float v_scale = value_scale(p, item.head);
#pragma unroll 1
  for (int row = warp; row < item.queries * p.group; row += Traits::kWarps) {
    float top, total;
    float4 value = merge_parts<Traits::kWarps>(
        [&](int w) { return shared.warp_max[w][row]; }, [&](int w) { return shared.warp_sum[w][row]; },
        [&](int w) { return *sums_of(shared, w, shared.out_place[w], row, 4 * lane); }, top, total);
    if (item.partial >= 0) {
      value.x *= v_scale, value.y *= v_scale, value.z *= v_scale, value.w *= v_scale;
      const int64_t at = int64_t{item.partial} * kStreamRows + row;
      __stcg(reinterpret_cast<float4*>(base + ws.partial) + at * (kDim / 4) + lane, value);
      if (lane == 0) reinterpret_cast<float2*>(base + ws.sums)[at] = make_float2(top, total);
    } else {
      *reinterpret_cast<uint2*>(p.out + StreamWarp<Traits>::query_offset(p, item, row) + 4 * lane) =
          pack_four(value, total > 0 ? v_scale / total : 0);
    }
  }
}

template <typename Traits>
__global__ void __maxnreg__(Traits::kRegisters)
    stream_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ StreamWorkspace ws,
                  const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<StreamShared<Traits>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) hopper::prefetch_tensor_map(&map);
  if (lane < Traits::kPlaces) hopper::mbarrier_init(&shared.full[warp][lane], 1);
  hopper::mbarrier_init_fence();
  __syncwarp();  // nobody else uses this warp's barriers
  StreamShare share(p, lane);
  StreamFetch<Traits> fetch = {p, map, shared.ring[warp], shared.full[warp], share, warp, lane};
  fetch.open();
#pragma unroll 1
  for (int i = 0; i < Traits::kPlaces; ++i) fetch.next();
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();

  StreamItem item;
  int place = 0, stages = 0;
  uint32_t parity = 0;
  const auto release = [&] {
    fetch.next();
    if (++place == Traits::kPlaces) place = 0, parity ^= 1;
  };
  while (share.next(item)) {
    StreamWarp<Traits> state;
    state.init(p, item, lane);
    const int ahead = item.position - item.first_key;
    const int last[2] = {ahead + lane / 4 / p.group, ahead + (lane / 4 + 8) / p.group};
#pragma unroll 1
    for (int key = first_key_of<Traits>(warp, stages); key < item.keys; key += Traits::kKeyDistance) {
      const int limit[2] = {last[0] - key, last[1] - key};
      hopper::mbarrier_wait(&shared.full[warp][place], parity);
      using Tile = typename StreamWarp<Traits>::Tile;
      const unsigned char* tile = shared.ring[warp][place];
#pragma unroll
      for (int first = 0; first < Traits::kTileKeys; first += Traits::kStepKeys)
        if (first == 0 || key + first < item.keys)
          state.step(reinterpret_cast<Tile>(tile), reinterpret_cast<Tile>(tile + Traits::kPlaceBytes / 2),
                     first, item.keys - key, limit, lane);
      __syncwarp();
      release();
    }
    stages += stages_in(item);
    hand_over(shared, state, place, warp, lane);
    __syncthreads();
    finish(p, ws, shared, item, warp, lane);
    hopper::fence_async_shared();  // the copy engine writes here next
    __syncthreads();
    release();
  }
}

}  // namespace msa::sm90::dense
