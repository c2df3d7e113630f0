// SPDX-License-Identifier: Apache-2.0
// Softmax arithmetic that the attention kernels share: the hardware's exponential, probabilities in 16 bits,
// a warp's running softmax over 16 keys at a time, and how sums of several parts become one.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

namespace msa::sm90 {

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two numbers as f16 or bf16, `low` in the lower half.
template <bool kF16>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  uint32_t pair;
  if constexpr (kF16)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// One warp's scores of 16 rows and 16 keys in two accumulators of eight keys become probabilities. Of rows
// lane / 4 and lane / 4 + 8: `max` in units of log2, `sum` of this lane's keys; the output so far follows.
__device__ __forceinline__ void softmax_step(float (&s)[2][4], const float (&scale_log2)[2], float (&max)[2],
                                             float (&sum)[2], float (&out)[16][4]) {
  float correction[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float top = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    top = fmaxf(max[r], top * scale_log2[r]);
    const float base = top == -INFINITY ? 0 : top;
    correction[r] = exp2_fast(max[r] - base);
    max[r] = top;
    float total = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        s[tile][i] = exp2_fast(fmaf(s[tile][i], scale_log2[r], -base));
        total += s[tile][i];
      }
    sum[r] = sum[r] * correction[r] + total;
  }
  if (!__any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f)) return;  // the maximum rarely moves
#pragma unroll
  for (int j = 0; j < 16; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[j][i] *= correction[i / 2];
}

// Sums of several parts of one row become one, in their order: part i lies at max_of(i), sum_of(i) and, this
// lane's four channels of it, at out_of(i). Returns those channels relative to `max`, the new maximum. Every
// lane does the small sums for itself: shuffles would take longer.
template <int kParts, typename MaxOf, typename SumOf, typename OutOf>
__device__ __forceinline__ float4 merge_parts(const MaxOf& max_of, const SumOf& sum_of, const OutOf& out_of,
                                              float& max, float& sum) {
  float factor[kParts];
  max = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) max = fmaxf(max, factor[i] = max_of(i));
  const float base = max == -INFINITY ? 0 : max;
  float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    factor[i] = exp2_fast(factor[i] - base);
    sum = fmaf(factor[i], sum_of(i), sum);
    const float4 x = out_of(i);
    out.x = fmaf(factor[i], x.x, out.x), out.y = fmaf(factor[i], x.y, out.y);
    out.z = fmaf(factor[i], x.z, out.z), out.w = fmaf(factor[i], x.w, out.w);
  }
  return out;
}

// Four channels in bf16.
__device__ __forceinline__ uint2 pack_four(const float4& v, float scale) {
  return {pack_pair<false>(v.x * scale, v.y * scale), pack_pair<false>(v.z * scale, v.w * scale)};
}

}  // namespace msa::sm90
