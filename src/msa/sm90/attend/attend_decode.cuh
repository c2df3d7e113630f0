// SPDX-License-Identifier: Apache-2.0
// The decode attend kernel. A cluster of 1 to 16 CTAs takes one (row, KV head), each CTA every splits-th of
// its slots, each of the CTA's eight warps 16 keys of every block. A warp has a private ring of tiles that
// the copy engine fills: warps never wait for each other before their sums are complete. Heads sit in the M
// dimension of the tensor cores, keys in N of q.k and in K of p.v. Two CTAs share an SM, so that one's start
// and end hide behind the other's stream.
#pragma once

#include "msa/sm90/attend/attend_decode_warp.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

// The request of a row and the row's position in its sequence; negative for padding.
__device__ inline int2 request_and_position(const AttendDecodeParams& p, int row) {
  if (p.cu_seqlens_q == nullptr) {
    const int request = row / p.queries_per_request, query = row - request * p.queries_per_request;
    return {request, p.seq_lens[request] - p.queries_per_request + query};
  }
  int low = 0, high = p.num_requests;  // the last request that starts at or before the row
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.cu_seqlens_q[middle] <= row ? low : high) = middle;
  }
  const int end = p.cu_seqlens_q[low + 1];
  return {low, row < end ? p.seq_lens[low] - end + row : -1};
}

// Four channels of one row on their way out. Nothing visible: zeros.
__device__ inline void write_out(__nv_bfloat16* out, float4 value, float total, float out_scale) {
  *reinterpret_cast<uint2*>(out) = pack_four(value, total > 0 ? out_scale / total : 0);
}

// Rows of the other CTAs' sums that this CTA merges.
template <typename Traits, int kSplits>
__device__ inline void merge_splits(const AttendDecodeParams& p, const AttendDecodeShared<Traits>& shared,
                                    int rank, float out_scale, __nv_bfloat16* out, int warp, int lane) {
  constexpr int kEntries = Traits::kRows / kSplits;
  for (int entry = warp; entry < kEntries; entry += Traits::kWarps) {
    const int row = entry * kSplits + rank;
    if (row >= p.group) break;
    const auto& inbox = shared.inbox;
    float max, sum;
    const float4 value = merge_parts<kSplits>(
        [&](int s) { return inbox.max_sum[s * kEntries + entry].x; },
        [&](int s) { return inbox.max_sum[s * kEntries + entry].y; },
        [&](int s) { return *reinterpret_cast<const float4*>(&inbox.out[s * kEntries + entry][lane * 4]); },
        max, sum);
    write_out(out + row * Traits::kDim, value, sum, out_scale);
  }
}

// The warps' sums become the output. With splits, row r goes to the CTA of rank r % splits, which merges it.
template <typename Traits>
__device__ inline void finish(const AttendDecodeParams& p, AttendDecodeShared<Traits>& shared, int unit,
                              int rank, int splits, float out_scale, int warp, int lane) {
  __nv_bfloat16* out = p.out + int64_t{unit} * p.group * Traits::kDim + lane * 4;
  if (splits > 1) hopper::cluster_wait();  // all CTAs run, and have done with their tables
  __syncthreads();
#pragma unroll
  for (int row = warp; row < Traits::kRows; row += Traits::kWarps) {
    if (row >= p.group) break;
    float max, sum;
    const float4 value = merge_parts<Traits::kWarps>(
        [&](int w) { return shared.warp_max[w][row]; }, [&](int w) { return shared.warp_sum[w][row]; },
        [&](int w) { return *reinterpret_cast<const float4*>(&shared.area[w].out[row][lane * 4]); }, max,
        sum);
    if (splits == 1) {
      write_out(out + row * Traits::kDim, value, sum, out_scale);
    } else {
      const int shift = __ffs(splits) - 1, owner = row & (splits - 1);
      const int entry = (rank * Traits::kRows + row) >> shift;
      const uint32_t full = hopper::cluster_address(&shared.inbox_full, owner);
      hopper::store_cluster(hopper::cluster_address(&shared.inbox.out[entry][lane * 4], owner), value, full);
      if (lane == 0)
        hopper::store_cluster(hopper::cluster_address(&shared.inbox.max_sum[entry], owner),
                              make_float2(max, sum), full);
    }
  }
  if (splits == 1 || rank >= p.group) return;
  hopper::mbarrier_wait_cluster(&shared.inbox_full, 0);
  switch (splits) {
    case 2:
      return merge_splits<Traits, 2>(p, shared, rank, out_scale, out, warp, lane);
    case 4:
      return merge_splits<Traits, 4>(p, shared, rank, out_scale, out, warp, lane);
    case 8:
      return merge_splits<Traits, 8>(p, shared, rank, out_scale, out, warp, lane);
    default:
      return merge_splits<Traits, 16>(p, shared, rank, out_scale, out, warp, lane);
  }
}

// Brings a warp's tiles into its ring in the order K, V, K, V, ... of its slots.
template <typename Traits>
struct DecodeFetch {
  const CUtensorMap& map;
  unsigned char (*ring)[Traits::kPlaceBytes];
  uint64_t* full;
  uint32_t slots;  // one bit for each slot still to fetch
  int tile;        // lane i: slot i's K among all tiles of 128 keys or values
  int first_key;   // of this warp, in a tile
  bool value = false;

  __device__ void next(int place, int lane) {
    if (slots == 0) return;
    const int from = __shfl_sync(~0u, tile, __ffs(slots) - 1) + value;
    if (lane == 0) {
      hopper::mbarrier_arrive_expect(&full[place], Traits::kPlaceBytes);
      if constexpr (Traits::kTogether) {
        hopper::tma_load_3d(ring[place], &map, &full[place], 0, first_key, from);
      } else {
        hopper::tma_load_3d(ring[place], &map, &full[place], 0, from * Traits::kBlock + first_key, 0);
      }
    }
    if (Traits::kTogether || value) slots &= slots - 1;
    value = !Traits::kTogether && !value;
  }
};

// The selection of one unit into scratch.blocks. Ends with a barrier.
template <typename Traits>
__device__ inline void select_for_unit(const AttendDecodeParams& p, SelectScratch<Traits::kWarps>& scratch,
                                       int unit, int position) {
  const IndexSelection selection{p.top_k, p.select.local_blocks, p.select.init_blocks};
  uint64_t keys[Traits::kSelectPerThread];
  load_keys<Traits::kScores, Traits::kSelectPerThread>(
      keys, p.select.scores + int64_t{unit} * p.max_blocks * Traits::kScores, 0, position, selection);
  cta_largest(keys, scratch);
  if (threadIdx.x < 32) order_blocks(scratch, p.top_k);
  __syncthreads();
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    attend_decode_kernel(const __grid_constant__ AttendDecodeParams p,
                         const __grid_constant__ CUtensorMap map, int splits) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<AttendDecodeShared<Traits>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int unit = blockIdx.x / splits, rank = blockIdx.x % splits, head = unit % p.kv_heads;
  hopper::let_next_kernel_start();
  if (lane < Traits::kRing) hopper::mbarrier_init(&shared.full[warp][lane], 1);
  if (threadIdx.x == 0) {
    hopper::mbarrier_init(&shared.inbox_full, 1);
    hopper::prefetch_tensor_map(&map);
  }
  hopper::mbarrier_init_fence();

  // The step's metadata is older than the kernel before.
  const auto [request, position] = request_and_position(p, unit / p.kv_heads);
  const int32_t* table = p.block_table + int64_t{request} * p.max_blocks;
  const bool cached = p.max_blocks <= Traits::kTableCache;
  if (cached)
#pragma unroll 4
    for (int i = threadIdx.x; i < p.max_blocks; i += Traits::kThreads) shared.table[i] = table[i];
  __syncthreads();
  if (threadIdx.x == 0 && rank < p.group)  // what all CTAs send of this one's rows
    hopper::mbarrier_arrive_expect(&shared.inbox_full, ((p.group - 1 - rank) / splits + 1) * splits *
                                                           (Traits::kDim * sizeof(float) + sizeof(float2)));

  const int slot = lane * splits + rank, first_key = warp * Traits::kWarpKeys;
  const int blocks = position >= 0 ? position / Traits::kBlock + 1 : 0;
  const bool whole = Traits::kSelects && blocks <= p.top_k;  // nothing to choose
  int block = whole && slot < blocks ? slot : -1, visible = 0;
  DecodeFetch<Traits> fetch{map, shared.area[warp].ring, shared.full[warp], 0, 0, first_key};
  const auto look_up = [&] {
    if (block < 0) return;
    visible = min(Traits::kWarpKeys, position - block * Traits::kBlock + 1 - first_key);
    const int page = cached ? shared.table[min(block, Traits::kTableCache - 1)] : table[block];
    fetch.tile = (page * p.kv_heads + head) * 2;
  };
  const auto start_fetch = [&] {
    fetch.slots = __ballot_sync(~0u, visible > 0);
#pragma unroll
    for (int i = 0; i < Traits::kRing; ++i) fetch.next(i, lane);
  };
  // Keys of earlier steps are older too. This step's are the request's last ones.
  bool started = false;
  if (whole) {
    look_up();
    const int first_new = position - (p.queries_per_request - 1);
    started = !__any_sync(~0u, visible > 0 && block * Traits::kBlock + first_key + visible > first_new);
    if (started) start_fetch();
  }
  hopper::wait_for_previous_kernel();

  const int query_row = threadIdx.x / 16, query_piece = threadIdx.x % 16;
  uint4 eight = {};
  if (query_row < p.group)
    eight = *reinterpret_cast<const uint4*>(p.q + (int64_t{unit} * p.group + query_row) * Traits::kDim +
                                            query_piece * 8);
  if constexpr (Traits::kSelects) {
    if (!whole) select_for_unit<Traits>(p, shared.select, unit, position);
    if (!whole && slot < p.top_k) block = shared.select.blocks[slot];
    if (blockIdx.x == 0 && threadIdx.x == 0 && p.select.counter != nullptr) *p.select.counter = 0;
    if (rank == 0 && threadIdx.x < p.top_k)
      p.select.selected[int64_t{unit} * p.top_k + threadIdx.x] =
          whole ? (static_cast<int>(threadIdx.x) < blocks ? static_cast<int>(threadIdx.x) : -1)
                : shared.select.blocks[threadIdx.x];
  } else {
    if (position >= 0 && slot < p.top_k) block = p.selected[int64_t{unit} * p.top_k + slot];
  }
  if (!whole) look_up();
  const uint32_t mine = __ballot_sync(~0u, visible > 0);
  if (!started) start_fetch();
  if (splits > 1) hopper::cluster_arrive_relaxed();  // the pages are in registers

  AttendDecodeWarp<Traits>::store_query(shared.query[query_row], query_piece, eight);
  const float k_scale = p.kv_scales != nullptr ? p.kv_scales[2 * head] : 1;
  const float v_scale = p.kv_scales != nullptr ? p.kv_scales[2 * head + 1] : 1;
  const float scale_log2 = p.scale * k_scale * kLog2e;
  __syncthreads();

  AttendDecodeWarp<Traits> state;
  const uint32_t query = hopper::smem_address(shared.query);
  int place = 0;
  uint32_t parity = 0;
  const auto wait = [&] {
    hopper::mbarrier_wait(&shared.full[warp][place], parity);
    return hopper::smem_address(shared.area[warp].ring[place]);
  };
  const auto release = [&] {
    __syncwarp();
    fetch.next(place, lane);
    if (++place == Traits::kRing) place = 0, parity ^= 1;
  };
  for (uint32_t left = mine; left != 0; left &= left - 1) {
    const int keys = __shfl_sync(~0u, visible, __ffs(left) - 1);
    float s[2][4];
    const uint32_t place_k = wait();
    state.scores(query, place_k, lane, s);
    if (!Traits::kTogether) release();
    if (keys < Traits::kWarpKeys) state.hide_keys(s, keys, lane);
    state.softmax(s, scale_log2);
    const uint32_t values = Traits::kTogether ? place_k + Traits::kTileBytes : wait();
    if (keys < Traits::kWarpKeys) state.zero_values(values, keys, lane);
    state.accumulate(values, lane, s);
    release();
  }
  __syncwarp();
  state.store(shared.area[warp].out, shared.warp_max[warp], shared.warp_sum[warp], lane);
  finish(p, shared, unit, rank, splits, v_scale, warp, lane);
}

template <typename Traits>
cudaError_t launch_attend_decode_kernel(const AttendDecodeParams& p, const CUtensorMap& map, int splits,
                                        cudaStream_t stream) {
  constexpr int kBytes = static_cast<int>(sizeof(AttendDecodeShared<Traits>));
  static_assert(kBytes <= 113 * 1024, "two CTAs on an SM");
  return hopper::launch_dependent(attend_decode_kernel<Traits>,
                                  {.grid = dim3(p.rows * p.kv_heads * splits),
                                   .threads = Traits::kThreads,
                                   .smem_bytes = kBytes,
                                   .cluster = splits},
                                  stream, p, map, splits);
}

}  // namespace msa::sm90
