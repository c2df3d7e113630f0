// SPDX-License-Identifier: Apache-2.0
// The decode attend kernel. CTAs go through units of work: some slots of one (row, KV head). One warp brings
// K and V of 64 keys at a time into a ring of stages with the copy engine and runs ahead, over unit
// boundaries too; eight warps, four to a stage, take 16 keys each. Keys of a tile sit in the N dimension of
// the tensor cores, heads in M. The contraction order of q.k and the column order of the output are permuted
// so that each lane's operands are whole 16-byte pieces of the swizzled tile, without bank conflicts.
#pragma once

#include "msa/sm90/attend/attend_decode_warp.cuh"

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

// The copying warp: stages of all units of this CTA, and after each unit one empty stage for each half of the
// warps.
template <typename Traits>
__device__ inline void produce(const AttendDecodeParams& p, const CUtensorMap& map,
                               AttendDecodeShared<Traits>& shared, int splits, int lane) {
  int count = 0;
  const auto push = [&](int row, int visible) {
    const int stage = count % Traits::kStages;
    mbarrier_wait(&shared.empty[stage], (count / Traits::kStages & 1) ^ 1);
    if (lane == 0) {
      shared.visible[stage] = visible;
      if (visible == 0) {
        mbarrier_arrive(&shared.full[stage]);
      } else {
        mbarrier_arrive_expect(&shared.full[stage], Traits::kStageBytes);
        decode_detail::tma_load_tile(shared.stage[stage][0], &map, &shared.full[stage], row);
        decode_detail::tma_load_tile(shared.stage[stage][1], &map, &shared.full[stage], row + Traits::kBlock);
      }
    }
    __syncwarp();
    ++count;
  };
  for (int item = blockIdx.x; item < p.rows * p.kv_heads * splits; item += gridDim.x) {
    const int unit = item / splits;
    // Neighbouring slots go to different CTAs, so that short selections are shared out evenly.
    const int slot = lane * splits + item % splits;
    int block = -1;
    if (slot < p.top_k) block = p.selected[int64_t{unit} * p.top_k + slot];
    const auto [request, position] = request_and_position(p, unit / p.kv_heads);
    if (position < 0) block = -1;
    const int page = block < 0 ? 0 : p.block_table[int64_t{request} * p.max_blocks + block];
    const int slots = __popc(__ballot_sync(~0u, block >= 0));
    for (int i = 0; i < slots; ++i) {
      const int row = (__shfl_sync(~0u, page, i) * p.kv_heads + unit % p.kv_heads) * 2 * Traits::kBlock;
      const int visible = min(Traits::kBlock, position - __shfl_sync(~0u, block, i) * Traits::kBlock + 1);
      for (int first = 0; first < visible; first += Traits::kStageKeys)
        push(row + first, min(Traits::kStageKeys, visible - first));
    }
    // The halves alternate, so the two marks below reach one each.
    push(0, 0);
    push(0, 0);
  }
}

enum DecodeBarrier { kConsumersBarrier = 1 };

// A split's sums in device memory.
struct DecodePartial {
  float out[16][128];  // relative to max
  float max[16], sum[16];
};

// More (row, KV head) pairs than this are never split. The counters lie at the start of the workspace, then
// the partials.
inline constexpr int kMaxSplitUnits = 1024;
inline constexpr int64_t kDecodePartialsOffset = kMaxSplitUnits * sizeof(int32_t);

// Four channels of one row on their way out. Nothing visible: zeros.
__device__ inline void write_out(__nv_bfloat16* out, float4 value, float total, float out_scale) {
  const float scale = total > 0 ? out_scale / total : 0;
  uint2 words;
  words.x = decode_detail::pack_bf16(value.x * scale, value.y * scale);
  words.y = decode_detail::pack_bf16(value.z * scale, value.w * scale);
  *reinterpret_cast<uint2*>(out) = words;
}

__device__ inline void add_scaled(float4& sum, float factor, const float4& x) {
  sum.x = fmaf(factor, x.x, sum.x), sum.y = fmaf(factor, x.y, sum.y);
  sum.z = fmaf(factor, x.z, sum.z), sum.w = fmaf(factor, x.w, sum.w);
}

// One row of 128 channels per warp and four channels per lane, for this function and those below.
template <typename Traits>
__device__ inline void merge_warps(AttendDecodeShared<Traits>& shared, int row, float4& value, float& top,
                                   float& total) {
  const int channel = threadIdx.x % 32 * 4;
  top = -INFINITY, total = 0, value = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int w = 0; w < Traits::kWarps; ++w) top = fmaxf(top, shared.warp_max[w][row]);
  const float base = top == -INFINITY ? 0 : top;
#pragma unroll
  for (int w = 0; w < Traits::kWarps; ++w) {
    const float factor = decode_detail::exp2_fast(shared.warp_max[w][row] - base);
    total += factor * shared.warp_sum[w][row];
    add_scaled(value, factor, *reinterpret_cast<const float4*>(&shared.warp_out[w][row][channel]));
  }
}

// The last CTA of a unit merges all its splits.
template <typename Traits>
__device__ inline void merge_splits(const AttendDecodeParams& p, const DecodePartial* partials, int splits,
                                    __nv_bfloat16* out) {
  const int channel = threadIdx.x % 32 * 4;
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < p.group; row += Traits::kWarps) {
    const int lane = threadIdx.x % 32;  // lane s looks after split s
    float4 parts[Traits::kMaxTopK];
#pragma unroll
    for (int s = 0; s < Traits::kMaxTopK; ++s)
      parts[s] = s < splits ? __ldcg(reinterpret_cast<const float4*>(&partials[s].out[row][channel]))
                            : make_float4(0, 0, 0, 0);
    const float own = lane < splits ? __ldcg(&partials[lane].max[row]) : -INFINITY;
    float total = lane < splits ? __ldcg(&partials[lane].sum[row]) : 0;
    float top = own;
#pragma unroll
    for (int d = 8; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d, 16));
    const float factor = decode_detail::exp2_fast(own - (top == -INFINITY ? 0 : top));
    total *= factor;
#pragma unroll
    for (int d = 8; d > 0; d /= 2) total += __shfl_xor_sync(~0u, total, d, 16);
    total = __shfl_sync(~0u, total, 0);
    float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < Traits::kMaxTopK; ++s) add_scaled(value, __shfl_sync(~0u, factor, s), parts[s]);
    write_out(out + row * Traits::kDim + channel, value, total, p.out_scale);
  }
}

// The warps' sums of one item become the output, or a partial that the unit's last CTA merges.
template <typename Traits>
__device__ inline void finish(const AttendDecodeParams& p, AttendDecodeShared<Traits>& shared, int item,
                              int splits) {
  const int unit = item / splits, lane = threadIdx.x % 32;
  __nv_bfloat16* out = p.out + int64_t{unit} * p.group * Traits::kDim;
  auto* counter = static_cast<int32_t*>(p.workspace) + unit;
  auto* partials = reinterpret_cast<DecodePartial*>(static_cast<char*>(p.workspace) + kDecodePartialsOffset);
#pragma unroll
  for (int row = threadIdx.x / 32; row < Traits::kRows; row += Traits::kWarps) {
    float4 value;
    float top, total;
    merge_warps(shared, row, value, top, total);
    if (row >= p.group) break;
    if (splits == 1) {
      write_out(out + row * Traits::kDim + lane * 4, value, total, p.out_scale);
    } else {
      __stcg(reinterpret_cast<float4*>(&partials[item].out[row][lane * 4]), value);
      if (lane == 0) partials[item].max[row] = top, partials[item].sum[row] = total;
    }
  }
  named_barrier_sync(kConsumersBarrier, 32 * Traits::kWarps);
  if (splits == 1) return;
  if (threadIdx.x == 0) {
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                 : "=r"(shared.arrived)
                 : "l"(counter)
                 : "memory");
    if (shared.arrived == splits - 1) *counter = 0;
  }
  named_barrier_sync(kConsumersBarrier, 32 * Traits::kWarps);
  if (shared.arrived == splits - 1) merge_splits<Traits>(p, partials + int64_t{unit} * splits, splits, out);
}

// What a warp hands to finish(): relative to the warp's own maximum.
template <typename Traits>
__device__ inline void hand_over(AttendDecodeShared<Traits>& shared, const AttendDecodeWarp<Traits>& state,
                                 int warp, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float total = state.sum[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const int row = g + 8 * r;
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
  named_barrier_sync(kConsumersBarrier, 32 * Traits::kWarps);
}

template <typename Traits>
__device__ inline void consume(const AttendDecodeParams& p, AttendDecodeShared<Traits>& shared, int splits,
                               int warp, int lane) {
  const float scale_log2 = p.scale * 1.4426950408889634f;
  const int first = warp % 4 * Traits::kChunkKeys;
  int count = warp / 4;  // of the stages, every second one
  for (int item = blockIdx.x; item < p.rows * p.kv_heads * splits; item += gridDim.x) {
    AttendDecodeWarp<Traits> state;
    state.init(p.q + int64_t{item / splits} * p.group * Traits::kDim, p.group, lane);
    for (bool more = true; more; count += 2) {
      const int stage = count % Traits::kStages;
      mbarrier_wait(&shared.full[stage], count / Traits::kStages & 1);
      const int visible = shared.visible[stage];
      more = visible > 0;
      if (first < visible)
        state.step(shared.stage[stage][0], shared.stage[stage][1], first, visible, scale_log2, lane);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(&shared.empty[stage]);
    }
    hand_over(shared, state, warp, lane);
    finish(p, shared, item, splits);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    attend_decode_kernel(const __grid_constant__ AttendDecodeParams p,
                         const __grid_constant__ CUtensorMap map, int splits) {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  auto& shared = *reinterpret_cast<AttendDecodeShared<Traits>*>(shared_bytes);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&map);
    for (int s = 0; s < Traits::kStages; ++s)
      mbarrier_init(&shared.full[s], 1), mbarrier_init(&shared.empty[s], 4);
    mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (warp == Traits::kWarps) {
    produce(p, map, shared, splits, lane);
  } else {
    consume(p, shared, splits, warp, lane);
  }
}

template <typename Traits>
cudaError_t launch_attend_decode_kernel(const AttendDecodeParams& p, const CUtensorMap& map, int splits,
                                        int sms, cudaStream_t stream) {
  const auto kernel = attend_decode_kernel<Traits>;
  constexpr int kBytes = static_cast<int>(sizeof(AttendDecodeShared<Traits>));
  const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  const int items = p.rows * p.kv_heads * splits;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(items < sms ? items : sms);
  config.blockDim = dim3(Traits::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, p, map, splits);
}

}  // namespace msa::sm90
