// SPDX-License-Identifier: Apache-2.0
// The stream kernel: each CTA goes through an equal share of the keys of all requests. One warp brings K and
// V of 64 keys at a time into a ring of stages and runs ahead, over the ends of requests too, and even while
// the kernel before still runs: keys of earlier steps are older than that. Eight warps, four to a stage, take
// 16 keys each and merge their sums where a request or the share ends.
#pragma once

#include "msa/sm90/dense/dense_stream_warp.cuh"

namespace msa::sm90::dense {

enum StreamBarrier { kConsumersBarrier = 1 };

template <typename Traits>
struct StreamProducer {
  const DenseParams& p;
  const CUtensorMap& map;
  StreamShared<Traits>& shared;
  int lane;
  int stages = 0, items = 0;  // sent so far

  __device__ void publish(const StreamItem& item) {
    const int slot = items % Traits::kItemSlots;
    mbarrier_wait(&shared.item_empty[slot], (items / Traits::kItemSlots & 1) ^ 1);
    if (lane == 0) {
      shared.item[slot] = item;
      mbarrier_arrive(&shared.item_full[slot]);
    }
    __syncwarp();
    ++items;
  }

  __device__ void send_keys(const StreamItem& item, int request) {
    const int32_t* table = p.block_table + int64_t{request} * p.max_blocks;
    constexpr int kPerBlock = kBlock / kStageKeys;
    const int first = item.first_key / kStageKeys, end = first + (item.keys + kStageKeys - 1) / kStageKeys;
    int pages = 0, window = -1;  // 32 blocks whose pages the lanes hold
    for (int i = first; i < end; ++i) {
      const int block = i / kPerBlock;
      if (block / 32 != window) {
        window = block / 32;
        pages = (window * 32 + lane) * kPerBlock < end ? table[window * 32 + lane] : 0;
      }
      const int row = (__shfl_sync(~0u, pages, block % 32) * p.kv_heads + item.head) * 2 * kBlock +
                      i % kPerBlock * kStageKeys;
      const int stage = stages % Traits::kStages;
      if ((i + 1) * kStageKeys > item.position) wait_for_previous_kernel();  // it may write this step's keys
      mbarrier_wait(&shared.empty[stage], (stages / Traits::kStages & 1) ^ 1);
      if (lane == 0) {
        mbarrier_arrive_expect(&shared.full[stage], Traits::kStageBytes);
        load_keys(shared.stage[stage][0], &map, &shared.full[stage], row);
        load_keys(shared.stage[stage][1], &map, &shared.full[stage], row + kBlock);
      }
      __syncwarp();
      ++stages;
    }
  }

  // Stages [begin, end) of the request's `all`.
  __device__ void send(int request, int head, int begin, int end, int all) {
    StreamItem item;
    const int length = p.seq_lens[request];
    item.first_query = first_query_of(p, request);
    item.queries = first_query_of(p, request + 1) - item.first_query;
    if (item.queries <= 0) return;
    item.head = head;
    item.first_key = begin * kStageKeys;
    item.keys = max(0, min(length, end * kStageKeys) - item.first_key);
    item.position = length - item.queries;
    item.partial = 2 * static_cast<int>(blockIdx.x) + (begin == 0 ? 1 : 0);
    if (begin == 0 && end == all) item.partial = -1;
    publish(item);
    send_keys(item, request);
  }

  __device__ void produce() {
    int total = 0;
#pragma unroll 4
    for (int r = lane; r < p.num_requests; r += 32) total += stages_of(p, r);
    total = __reduce_add_sync(~0u, total) * p.kv_heads;
    // Block tables may hold far more than the contexts: no CTA whose share would be empty takes part.
    const int cta = static_cast<int>(blockIdx.x), ctas = min(static_cast<int>(gridDim.x), total);
    const int low = cta < ctas ? share_begin(cta, ctas, total) : 0;
    const int high = cta < ctas ? share_begin(cta + 1, ctas, total) : 0;
    int start = 0;  // first stage of the request
    for (int first = 0; start < high; first += 32) {
      const int own = first + lane < p.num_requests ? stages_of(p, first + lane) : 0;
      if (const int all = __reduce_add_sync(~0u, own) * p.kv_heads; start + all <= low) {
        start += all;
        continue;
      }
      for (int i = 0; i < 32 && start < high; ++i) {
        const int count = __shfl_sync(~0u, own, i);
        for (int head = 0; head < p.kv_heads; ++head, start += count) {
          const int begin = max(low, start) - start, end = min(high, start + count) - start;
          if (begin < end) send(first + i, head, begin, end, count);
        }
      }
    }
    publish({});
  }
};

// What a warp hands to finish(): relative to the warp's own maximum.
template <typename Traits>
__device__ inline void hand_over(StreamShared<Traits>& shared, const StreamWarp<Traits>& state, int warp,
                                 int lane) {
  const int t = lane % 4;
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
        *reinterpret_cast<float4*>(&shared.warp_out[warp][row][channel]) =
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
    float top = -INFINITY, total = 0;
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared.warp_max[w][row]);
    const float reference = top == -INFINITY ? 0 : top;
#pragma unroll
    for (int w = 0; w < Traits::kWarps; ++w) {
      const float factor = exp2_fast(shared.warp_max[w][row] - reference);
      const float4 x = *reinterpret_cast<const float4*>(&shared.warp_out[w][row][4 * lane]);
      total = fmaf(factor, shared.warp_sum[w][row], total);
      value.x = fmaf(factor, x.x, value.x), value.y = fmaf(factor, x.y, value.y);
      value.z = fmaf(factor, x.z, value.z), value.w = fmaf(factor, x.w, value.w);
    }
    const float scale = item.partial >= 0 ? v_scale : total > 0 ? v_scale / total : 0;
    value.x *= scale, value.y *= scale, value.z *= scale, value.w *= scale;
    if (item.partial >= 0) {
      const int64_t at = int64_t{item.partial} * kStreamRows + row;
      __stcg(reinterpret_cast<float4*>(base + ws.partial) + at * (kDim / 4) + lane, value);
      if (lane == 0) reinterpret_cast<float2*>(base + ws.sums)[at] = make_float2(top, total);
    } else {
      *reinterpret_cast<uint2*>(p.out + StreamWarp<Traits>::query_offset(p, item, row) + 4 * lane) =
          make_uint2(pack_bf16(value.x, value.y), pack_bf16(value.z, value.w));
    }
  }
}

template <typename Traits>
__device__ inline void consume(const DenseParams& p, const StreamWorkspace& ws, StreamShared<Traits>& shared,
                               int warp, int lane) {
  const int team = warp / Traits::kStageWarps, first = warp % Traits::kStageWarps * Traits::kStepKeys;
  int count = 0;  // stages before this item
  for (int items = 0;; ++items) {
    const int slot = items % Traits::kItemSlots;
    mbarrier_wait(&shared.item_full[slot], items / Traits::kItemSlots & 1);
    const StreamItem& item = shared.item[slot];  // not copied: registers are short
    if (item.queries == 0) return;
    StreamWarp<Traits> state;
    state.init(p, item, lane);
    const int keys = item.keys, stages = (keys + kStageKeys - 1) / kStageKeys;
    const int ahead = item.position - item.first_key;
    const int last[2] = {ahead + lane / 4 / p.group, ahead + (lane / 4 + 8) / p.group};
    // The teams alternate over the ends of items.
    for (int i = (team + count) % Traits::kTeams; i < stages; i += Traits::kTeams) {
      const int at = count + i, stage = at % Traits::kStages;
      const int key = i * kStageKeys, written = keys - key;
      const int limit[2] = {last[0] - key, last[1] - key};
      mbarrier_wait(&shared.full[stage], at / Traits::kStages & 1);
      if (first < written)
        state.step(shared.stage[stage][0], shared.stage[stage][1], first, written, limit, lane);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
    }
    count += stages;
    hand_over(shared, state, warp, lane);
    named_barrier_sync(kConsumersBarrier, 32 * Traits::kWarps);
    finish(p, ws, shared, item, warp, lane);
    named_barrier_sync(kConsumersBarrier, 32 * Traits::kWarps);
    if (lane == 0) mbarrier_arrive(&shared.item_empty[slot]);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    stream_kernel(const __grid_constant__ DenseParams p, const __grid_constant__ StreamWorkspace ws,
                  const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<StreamShared<Traits>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map);
    for (int s = 0; s < Traits::kStages; ++s)
      mbarrier_init(&shared.full[s], 1), mbarrier_init(&shared.empty[s], Traits::kStageWarps);
    for (int s = 0; s < Traits::kItemSlots; ++s)
      mbarrier_init(&shared.item_full[s], 1), mbarrier_init(&shared.item_empty[s], Traits::kWarps);
    mbarrier_init_fence();
  }
  __syncthreads();
  if (warp == Traits::kWarps) {
    StreamProducer<Traits>{p, map, shared, lane}.produce();
  } else {
    wait_for_previous_kernel();
    let_next_kernel_start();
    consume(p, ws, shared, warp, lane);
  }
}

}  // namespace msa::sm90::dense
