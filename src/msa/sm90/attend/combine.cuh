// SPDX-License-Identifier: Apache-2.0
// Merges the partial results of each query that went block by block, by their maxima and sums, in the order
// of the slots.
//
// A partial of `group` heads is [half of the heads, 4, lanes, 8] bf16, as the warps that made it hold it:
// lane 4 g + t of part i has channels 8 (4 i + j) + 2 t + {0, 1}, j = 0..3, of head g (of its half). Groups
// of 16 heads have two halves of 32 lanes; groups of 8 one; groups of 4 one of 16 lanes.
#pragma once

#include <cuda_runtime.h>

#include "msa/sm90/attend/query_tile.cuh"
#include "sm90/ptx.cuh"

namespace msa::sm90 {

template <int kGroupSize>
struct CombineTraits {
  static constexpr int kGroup = kGroupSize, kDim = 128, kMaxTopK = 16;
  static constexpr int kThreads = 256, kMinCtasPerSm = 2;
  static constexpr int kPieces = kGroup * kDim / 8;  // of 16 bytes, per (query, KV head)
  static constexpr int kRows = kThreads / kPieces;   // queries that a CTA merges at once
  static constexpr int kCtasPerTile = 3;             // many small CTAs end together
  static constexpr int kLanes = kGroup >= 8 ? 32 : 16;
  static_assert(kThreads % kPieces == 0, "a CTA holds whole queries");
};

// One query; `piece` is this thread's share of it.
template <typename Traits>
__device__ void combine_query(const AttendPrefillParams& p, const AttendPrefillWorkspace& ws, int64_t unit,
                              int piece, float value_scale) {
  const char* base = static_cast<const char*>(p.workspace);
  const int lane = piece % Traits::kLanes, head = piece / 128 * 8 + lane / 4;
  const auto* sums = reinterpret_cast<const float2*>(base + ws.sums) + unit * p.top_k * Traits::kGroup + head;
  const auto* partial =
      reinterpret_cast<const uint4*>(base + ws.partial) + unit * p.top_k * Traits::kPieces + piece;
  // Everything is asked for at once, before the count of partials is known; what was never written is dropped
  // below.
  const int count = reinterpret_cast<const int32_t*>(base + ws.counts)[unit];
  float2 sum[Traits::kMaxTopK];
  uint4 value[Traits::kMaxTopK];
#pragma unroll
  for (int s = 0; s < Traits::kMaxTopK; ++s)
    sum[s] = s < p.top_k ? sums[s * Traits::kGroup] : make_float2(0, 0);
#pragma unroll
  for (int s = 0; s < Traits::kMaxTopK; ++s)
    value[s] = s < p.top_k ? __ldcs(partial + s * Traits::kPieces) : make_uint4(0, 0, 0, 0);
  float top = -INFINITY, total = 0;
#pragma unroll
  for (int s = 0; s < Traits::kMaxTopK; ++s)
    if (s < count) top = fmaxf(top, sum[s].x);
  float out[8] = {};
#pragma unroll
  for (int s = 0; s < Traits::kMaxTopK; ++s) {
    if (s >= count) continue;
    const float w = exp2f(sum[s].x - top);
    total = fmaf(w, sum[s].y, total);
    const uint32_t words[4] = {value[s].x, value[s].y, value[s].z, value[s].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = fmaf(w, __uint_as_float(words[i] << 16), out[2 * i]);
      out[2 * i + 1] = fmaf(w, __uint_as_float(words[i] & 0xffff0000u), out[2 * i + 1]);
    }
  }
  const float scale = count > 0 ? value_scale / total : 0;
  const int part = piece % 128 / Traits::kLanes;
  __nv_bfloat16* row = p.out + (unit * Traits::kGroup + head) * Traits::kDim + part * 32 + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 4; ++j)
    *reinterpret_cast<__nv_bfloat162*>(row + 8 * j) =
        __floats2bfloat162_rn(out[2 * j] * scale, out[2 * j + 1] * scale);
}

// Grid: kCtasPerTile for each unit that there may be.
template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kMinCtasPerSm)
    combine_kernel(const __grid_constant__ AttendPrefillParams p,
                   const __grid_constant__ AttendPrefillWorkspace ws) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const char* base = static_cast<const char*>(p.workspace);
  const int index = static_cast<int>(blockIdx.x) / Traits::kCtasPerTile;
  const int4 tile = reinterpret_cast<const int4*>(base + ws.outer_units)[index];  // maybe past the last
  if (index >= reinterpret_cast<const TileLists*>(base + ws.lists)->num_outer) return;
  const int share = ws.tile_queries / Traits::kCtasPerTile;
  const int first = static_cast<int>(blockIdx.x) % Traits::kCtasPerTile * share;
  const float value_scale = p.kv_scales == nullptr ? 1 : p.kv_scales[2 * tile.z + 1];
#pragma unroll 1
  for (int row = first + threadIdx.x / Traits::kPieces; row < min(first + share, tile.y);
       row += Traits::kRows)
    combine_query<Traits>(p, ws, int64_t{tile.x + row} * p.kv_heads + tile.z, threadIdx.x % Traits::kPieces,
                          value_scale);
}

}  // namespace msa::sm90
