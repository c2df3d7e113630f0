// SPDX-License-Identifier: Apache-2.0
// The choice of a row's experts from its logits: one warp for a row.
#pragma once

#include <cstdint>

#include "ops/cuda/router.h"

namespace sparrow::ops::cuda {

struct Selection {
  const float* bias;
  int32_t* ids;
  float* weights;
  int rows, num_experts, top_k;
  RealRows real;  // of the call
  WantedExperts wanted;
  int first_row;  // of these in the call
};

// Metadata of the step, which no kernel writes.
__device__ __forceinline__ bool is_padding(const RealRows& real, int row) {
  if (real.count == nullptr) return false;
  int g = 0;
  while (g + 1 < real.groups && row >= real.first_row[g + 1]) ++g;
  return row - real.first_row[g] >= __ldg(real.count + g);
}

// Ascending with the number; any number is above 0.
__device__ __forceinline__ uint32_t ordered_bits(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 equals 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

template <int kPerLane>
__device__ void load_bias(const Selection& p, float (&bias)[kPerLane]) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + static_cast<int>(threadIdx.x % 32);
    bias[i] = e < p.num_experts ? __ldg(p.bias + e) : 0.0f;
  }
}

// logit[i] and bias[i] are those of expert 32 i + lane. A rehearsal writes nothing.
template <int kPerLane>
__device__ void select_experts(const Selection& p, int row, const float (&logit)[kPerLane],
                               const float (&bias)[kPerLane], bool rehearsal = false) {
  constexpr uint32_t kTaken = 0;
  const int lane = threadIdx.x % 32;
  const bool absent = is_padding(p.real, p.first_row + row);
  float sigmoid[kPerLane];
  uint32_t choice[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = 32 * i + lane;
    sigmoid[i] = 1.0f / (1.0f + expf(-logit[i]));
    const float biased = sigmoid[i] + bias[i];
    choice[i] = e < p.num_experts ? ordered_bits(isnan(biased) ? -INFINITY : biased) : kTaken;
  }
  int picked = kMaxExperts;  // of lane k: the expert of round k
  float picked_sigmoid = 0;
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    uint32_t best = kTaken;
    int slot = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (choice[i] > best) best = choice[i], slot = i;
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int mine = best == top ? 32 * slot + lane : kMaxExperts;
    const int winner = __reduce_min_sync(~0u, mine);
    float value = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (32 * i + lane == winner) choice[i] = kTaken, value = sigmoid[i];
    value = __shfl_sync(~0u, value, winner % 32);
    if (lane == k) picked = winner, picked_sigmoid = value;
  }
  // By ascending id; the sum is taken in that order too.
  int place = 0;
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) place += __shfl_sync(~0u, picked, k) < picked;
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < p.top_k; ++k) {
    const uint32_t owner = __ballot_sync(~0u, lane < p.top_k && place == k);
    sum += __shfl_sync(~0u, picked_sigmoid, __ffs(owner) - 1);
  }
  if (lane >= p.top_k || rehearsal) return;
  const int id = picked - p.wanted.first;
  p.ids[int64_t{row} * p.top_k + place] = absent || id < 0 || id >= p.wanted.count ? -1 : id;
  p.weights[int64_t{row} * p.top_k + place] = picked_sigmoid / sum;
}

}  // namespace sparrow::ops::cuda
