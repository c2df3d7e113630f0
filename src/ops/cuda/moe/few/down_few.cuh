// SPDX-License-Identifier: Apache-2.0
// The second product of the experts for few rows, with the weighted sum: each CTA owns a slab of the hidden
// channels, walks through all shares in ascending expert id and adds weight * product to sums in shared
// memory, so nothing partial goes to memory and the order of a row's sum does not depend on the other rows.
//
// Tokens are M of mma.sync, eight weight rows N, one such tile for each warp; a warp owns its channels from
// the first share to the last, so warps never wait for each other.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/moe/few/route_few.cuh"
#include "ops/cuda/moe/fragments.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct DownFewParams {
  CUtensorMap lines;                 // w in boxes of a stage, for rows that are cut into pieces
  const __nv_bfloat16* w = nullptr;  // [num_experts + 1, hidden, inter]
  const __nv_bfloat16* h = nullptr;  // [places, inter], from the kernel before
  const int32_t* ids = nullptr;      // [rows, top_k], not from the kernel before
  const float* weights = nullptr;    // [rows, top_k], likewise
  __nv_bfloat16* out = nullptr;      // [rows, hidden]
  int rows = 0, hidden = 0, inter = 0, num_experts = 0, top_k = 0;
  // Channels of a CTA; columns and token rows of a stage; stages of the ring.
  int slab = 0, depth = 0, tokens = 0, stages = 0;
  float scaling = 1;
};

struct DownFew {
  using Route = RouteFew<16>;
  static constexpr int kTokens = Route::kTokens, kMaxWarps = 8, kMaxThreads = (kMaxWarps + 1) * 32;
  static constexpr int kMaxSlab = kMaxWarps * 8;
  static constexpr int kMaxDepth = 384, kMaxStages = 8;
  struct Smem {  // then sums [rows][slab], then the ring
    uint64_t full[kMaxStages], empty[kMaxStages];
    float factor[Route::kMaxPlaces];  // of each place
    int32_t row[Route::kMaxPlaces];
    Route route;
  };
  static constexpr int kSumsOffset = (sizeof(Smem) + 127) / 128 * 128;
  static constexpr int ring_offset(int rows, int slab) {
    return kSumsOffset + (rows * slab * 4 + 127) / 128 * 128;
  }
  static constexpr int stage_bytes(int slab, int tokens, int depth) { return (slab + tokens) * depth * 2; }
  static constexpr int threads(int slab) { return (slab / 8 + 1) * 32; }  // the last warp fetches
};

struct DownStep {
  FewShare share;
  int chunk, width;
};

__device__ __forceinline__ DownStep down_step(const DownFewParams& p, const DownFew::Smem& smem, int step,
                                              int chunks) {
  DownStep s{smem.route.shares[step / chunks], step % chunks, 0};
  s.width = min(p.depth, p.inter - s.chunk * p.depth);
  return s;
}

// Announces a stage and asks for its weights: whole rows in one piece, pieces of rows as lines of 64 columns
// by one tensor copy. (Copies of single rows cost the producer 45-70 cycles each.)
__device__ __forceinline__ void down_weights(uint8_t* tile, const DownFewParams& p, const DownStep& s,
                                             int channels, uint64_t* bar) {
  if (threadIdx.x % 32 == 0) {
    const int first = s.share.expert * p.hidden + static_cast<int>(blockIdx.x) * p.slab;
    const bool whole = p.depth == p.inter;
    const int weight_bytes = whole ? channels * p.inter * 2 : p.slab * p.depth * 2;
    hopper::mbarrier_arrive_expect(bar, weight_bytes + s.share.count * s.width * 2);
    if (whole)
      hopper::bulk_load(tile, p.w + int64_t{first} * p.inter, weight_bytes, bar);
    else
      hopper::tma_load_3d(tile, &p.lines, bar, 0, first, s.chunk * (p.depth / 64), hopper::kEvictFirst);
  }
  __syncwarp();
}

__device__ __forceinline__ void down_tokens(uint8_t* tile, const DownFewParams& p, const DownStep& s,
                                            uint64_t* bar) {
  const int lane = threadIdx.x % 32;
  const __nv_bfloat16* h = p.h + int64_t{s.share.first} * p.inter;
  tile += p.slab * p.depth * 2;
  if (p.depth == p.inter) {
    if (lane == 0) hopper::bulk_load(tile, h, s.share.count * p.inter * 2, bar);
    return;
  }
  for (int t = lane; t < s.share.count; t += 32)
    hopper::bulk_load(tile + t * p.depth * 2, h + int64_t{t} * p.inter + s.chunk * p.depth, s.width * 2, bar);
}

__device__ __forceinline__ void down_produce(const DownFewParams& p, DownFew::Smem& smem, uint8_t* ring,
                                             int channels) {
  const int chunks = (p.inter + p.depth - 1) / p.depth, steps = smem.route.num_shares * chunks;
  const int stage_bytes = DownFew::stage_bytes(p.slab, p.tokens, p.depth);
  const int early = min(p.stages, steps);
  for (int step = 0; step < early; ++step)
    down_weights(ring + step * stage_bytes, p, down_step(p, smem, step, chunks), channels, &smem.full[step]);
  hopper::wait_for_previous_kernel();
  int stage = 0, parity = 0;
  for (int step = 0; step < steps; ++step) {
    const DownStep s = down_step(p, smem, step, chunks);
    uint8_t* tile = ring + stage * stage_bytes;
    if (step >= early) {
      hopper::mbarrier_wait(&smem.empty[stage], parity ^ 1);
      down_weights(tile, p, s, channels, &smem.full[stage]);
    }
    down_tokens(tile, p, s, &smem.full[stage]);
    if (++stage == p.stages) stage = 0, parity ^= 1;
  }
}

__device__ __forceinline__ void down_consume(const DownFewParams& p, DownFew::Smem& smem, float* sums,
                                             const uint8_t* ring, int channels) {
  const int chunks = (p.inter + p.depth - 1) / p.depth, steps = smem.route.num_shares * chunks;
  const int stage_bytes = DownFew::stage_bytes(p.slab, p.tokens, p.depth), row_bytes = p.depth * 2;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Weights lie as they came: in rows or in lines.
  const bool whole = p.depth == p.inter;
  const int w_row_bytes = whole ? row_bytes : 128, w_line_bytes = whole ? 128 : p.slab * 128;
  if (warp * 8 >= channels) return;
  for (int i = lane; i < p.rows * 8; i += 32) sums[i / 8 * p.slab + warp * 8 + i % 8] = 0;
  float acc[2][4] = {};
  int stage = 0, parity = 0;
  for (int step = 0; step < steps; ++step) {
    const DownStep s = down_step(p, smem, step, chunks);
    hopper::mbarrier_wait(&smem.full[stage], parity);
    const uint32_t tile = hopper::smem_address(ring) + stage * stage_bytes;
    // Rows past the last token give sums that nobody takes.
    const uint32_t weights = tile + (warp * 8 + lane / 4) * w_row_bytes,
                   h0 = tile + (p.slab + min(lane / 4, p.tokens - 1)) * row_bytes,
                   h1 = tile + (p.slab + min(8 + lane / 4, p.tokens - 1)) * row_bytes;
#pragma unroll 2
    for (int line = 0; line < s.width / 64; ++line) {
      const Line b = load_line(weights + line * w_line_bytes), a0 = load_line(h0 + line * 128);
      Line a1{};
      if (s.share.count > 8) a1 = load_line(h1 + line * 128);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        multiply_words(acc[i % 2], a0, a1, b, i);  // two chains of sums: half the wait
    }
    __syncwarp();
    if (lane == 0) hopper::mbarrier_arrive(&smem.empty[stage]);
    if (++stage == p.stages) stage = 0, parity ^= 1;
    if (s.chunk + 1 < chunks) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = lane / 4 + half * 8;
      if (token >= s.share.count) continue;
      const int place = s.share.first + token;
      auto* sum = reinterpret_cast<float2*>(sums + smem.row[place] * p.slab + warp * 8 + lane % 4 * 2);
      const float factor = smem.factor[place];
      float2 v = *sum;
      v.x += factor * (acc[0][half * 2] + acc[1][half * 2]);
      v.y += factor * (acc[0][half * 2 + 1] + acc[1][half * 2 + 1]);
      *sum = v;
    }
    __syncwarp();  // the next share's lanes hold other rows
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i / 4][i % 4] = 0;
  }
  for (int row = lane; row < p.rows; row += 32) {
    const float4* sum = reinterpret_cast<const float4*>(sums + row * p.slab + warp * 8);
    const float4 low = sum[0], high = sum[1];
    __nv_bfloat162 packed[4] = {__floats2bfloat162_rn(low.x, low.y), __floats2bfloat162_rn(low.z, low.w),
                                __floats2bfloat162_rn(high.x, high.y), __floats2bfloat162_rn(high.z, high.w)};
    *reinterpret_cast<uint4*>(p.out + int64_t{row} * p.hidden + int64_t{blockIdx.x} * p.slab + warp * 8) =
        *reinterpret_cast<const uint4*>(packed);
  }
}

static __global__ void __launch_bounds__(DownFew::kMaxThreads, 1)
    down_few_kernel(const __grid_constant__ DownFewParams p) {
  extern __shared__ __align__(128) uint8_t smem_bytes[];
  auto& smem = *reinterpret_cast<DownFew::Smem*>(smem_bytes);
  auto* sums = reinterpret_cast<float*>(smem_bytes + DownFew::kSumsOffset);
  uint8_t* ring = smem_bytes + DownFew::ring_offset(p.rows, p.slab);
  const int channels = min(p.slab, p.hidden - static_cast<int>(blockIdx.x) * p.slab);
  hopper::let_next_kernel_start();
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s)
      hopper::mbarrier_init(&smem.full[s], 1), hopper::mbarrier_init(&smem.empty[s], channels / 8);
    hopper::mbarrier_init_fence();
  }
  // The routing is older than the kernel before, which lets this one start only after it has waited itself.
  route_few(smem.route, p.ids, p.rows, p.num_experts, p.top_k);
  const int pairs = p.rows * p.top_k;
  for (int i = threadIdx.x; i < pairs + p.rows; i += blockDim.x) {
    if (i >= smem.route.num_routed && i < pairs) continue;
    const int pair = smem.route.pair_at[i];
    smem.row[i] = row_of_pair(pair, pairs, p.top_k);
    smem.factor[i] = pair < pairs ? p.weights[pair] * p.scaling : 1.0f;
  }
  __syncthreads();
  if (threadIdx.x / 32 == p.slab / 8)
    down_produce(p, smem, ring, channels);
  else
    down_consume(p, smem, sums, ring, channels);
}

}  // namespace sparrow::ops::cuda
