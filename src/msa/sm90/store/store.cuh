// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes take a chunk: up to four heads of one row and kind (q, k, v, index q, index k), which they go
// through together: norm weights and rotary values are fetched once, and the four chains of sums hide each
// other's latency. With few rows a chunk is one head, which is half of the code. A lane has four
// channels and the four that they are paired with, so that turning needs no other lane.
#pragma once

#include <cuda_fp8.h>

#include "msa/msa.h"
#include "msa/sm90/store/store.h"
#include "sm90/ptx.cuh"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

template <int kHeadsPerChunk>
struct StoreTraits {
  static constexpr int kDim = 128, kBlock = 128;
  static constexpr int kPairs = 4;  // channels of a lane, and as many partners
  static constexpr int kLanes = kDim / (2 * kPairs);
  static constexpr int kHeads = kHeadsPerChunk;  // all loaded before the first is used
  static constexpr int kThreads = 256, kMinCtasPerSm = 4;
  static constexpr int kChunksPerCta = kThreads / kLanes;
  static_assert(kLanes == 16, "two chunks to a warp");
  static_assert(kHeads == 1 || kHeads == 4);
};
inline constexpr int kMaxStoreKvHeads = 4;

// Chunks of a row: q heads, k, v and, in sparse layers, index q and index k.
template <typename T>
__host__ __device__ inline int store_chunks(const StoreParams& p) {
  const auto chunks = [](int heads) { return (heads + T::kHeads - 1) / T::kHeads; };
  const int index = p.index_q.data != nullptr ? chunks(p.index_heads) + 1 : 0;
  return chunks(p.query_heads) + 2 * chunks(p.kv_heads) + index;
}

// What one chunk does. Head h of it reads at from + 128 h and writes at to + h * head_stride elements.
struct StoreChunk {
  const __nv_bfloat16* from;
  const __nv_bfloat16* norm;  // nullptr: values pass as they are
  const float* scales;        // of head h at [2 h]; nullptr: 1
  char* to;
  int64_t head_stride;
  int row, heads;
  bool e4m3, writes;
};

template <typename T>
__device__ inline StoreChunk store_chunk(const StoreParams& p, int row, int chunk) {
  constexpr int64_t kTile = T::kBlock * T::kDim;
  StoreChunk c = {};
  const int64_t slot = p.slots[row];
  const int64_t block = slot >> 7, offset = (slot & (T::kBlock - 1)) * T::kDim;
  const int after_q = chunk - (p.query_heads + T::kHeads - 1) / T::kHeads;
  const int of_kind = (p.kv_heads + T::kHeads - 1) / T::kHeads;
  const int of_index = (p.index_heads + T::kHeads - 1) / T::kHeads;
  const int kind = (after_q >= of_kind) + (after_q >= 2 * of_kind) + (after_q >= 2 * of_kind + of_index);
  const int first = (after_q < 0 ? chunk : after_q - kind * of_kind) * T::kHeads;  // not of index k
  c.row = row;
  c.writes = slot >= 0;
  c.head_stride = T::kDim;
  c.heads = min(T::kHeads, (after_q < 0 ? p.query_heads : kind == 2 ? p.index_heads : p.kv_heads) - first);
  if (after_q < 0) {
    c.from = p.q.data + row * p.q.stride + first * T::kDim;
    c.norm = p.q_norm;
    c.to = reinterpret_cast<char*>(p.q_out + (int64_t{row} * p.query_heads + first) * T::kDim);
  } else if (kind < 2) {
    const StoreRows& rows = kind == 0 ? p.k : p.v;
    c.from = rows.data + row * rows.stride + first * T::kDim;
    c.norm = kind == 0 ? p.k_norm : nullptr;
    c.scales = p.kv_scales == nullptr ? nullptr : p.kv_scales + 2 * first + kind;
    c.e4m3 = p.kv_type == hopper::Element::kE4M3;
    c.to = static_cast<char*>(p.kv_pages) +
           (((block * p.kv_heads + first) * 2 + kind) * kTile + offset) * (c.e4m3 ? 1 : 2);
    c.head_stride = 2 * kTile;
  } else if (kind == 2) {
    c.from = p.index_q.data + row * p.index_q.stride + first * T::kDim;
    c.norm = p.index_q_norm;
    c.to = reinterpret_cast<char*>(p.index_q_out + (int64_t{row} * p.index_heads + first) * T::kDim);
  } else {
    c.heads = 1;
    c.from = p.index_k.data + row * p.index_k.stride;
    c.norm = p.index_k_norm;
    c.e4m3 = p.index_type == hopper::Element::kE4M3;
    c.to = static_cast<char*>(p.index_pages) + (block * kTile + offset) * (c.e4m3 ? 1 : 2);
  }
  return c;
}

// Eight channels of one head as they lie in memory: four, and the four that they are paired with.
struct StoreRaw {
  uint2 low, high;

  __device__ void load(const __nv_bfloat16* head, int at, int partner) {
    low = *reinterpret_cast<const uint2*>(head + at);
    high = *reinterpret_cast<const uint2*>(head + partner);
  }
};

// The same in f32: x[i] and x[4 + i] are a pair.
struct StoreLane {
  float x[8];

  __device__ explicit StoreLane(const StoreRaw& raw) {
    const uint32_t words[4] = {raw.low.x, raw.low.y, raw.high.x, raw.high.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = __uint_as_float(words[i] << 16);
      x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
  // The products are exact in double, and the order of their sum changes nothing that f32 would show but in
  // rare ties.
  __device__ double sum_of_squares() const {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fma(static_cast<double>(x[i]), static_cast<double>(x[i]), sum);
    return sum;
  }
  // Multiplications and additions are kept apart, as the definition has them.
  __device__ void scale(float factor, const StoreLane& weight) {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(__fmul_rn(x[i], factor), __fadd_rn(1.0f, weight.x[i]));
  }
  __device__ void turn(const float2 (&by)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = x[i], high = x[4 + i];
      x[i] = __fsub_rn(__fmul_rn(low, by[i].x), __fmul_rn(high, by[i].y));
      x[4 + i] = __fadd_rn(__fmul_rn(high, by[i].x), __fmul_rn(low, by[i].y));
    }
  }
  __device__ uint2 as_bf16(int at) const {
    const __nv_bfloat162 a = __floats2bfloat162_rn(x[at], x[at + 1]);
    const __nv_bfloat162 b = __floats2bfloat162_rn(x[at + 2], x[at + 3]);
    return make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
  }
  __device__ uint32_t as_e4m3(int at, float scale) const {
    const auto pair = [&](int i) {
      const float2 over = make_float2(__fdiv_rn(x[at + i], scale), __fdiv_rn(x[at + i + 1], scale));
      return uint32_t{__nv_cvt_float2_to_fp8x2(over, __NV_SATFINITE, __NV_E4M3)};
    };
    return pair(0) | pair(2) << 16;
  }
};

__device__ __forceinline__ float norm_factor(double sum_of_squares, float eps) {
  const float mean = static_cast<float>(sum_of_squares / kHeadDim);
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, eps)));
}

// The sixteen lanes' sums of four heads, each ending in all lanes: two steps that halve the heads a lane
// looks after, two that complete its one, and one word back from each head's lanes.
__device__ __forceinline__ void norm_factors(const double (&sums)[4], float eps, int lane, uint32_t mask,
                                             float (&factors)[4]) {
  const bool upper = lane & 8, odd = lane & 4;
  double a = upper ? sums[2] : sums[0], b = upper ? sums[3] : sums[1];
  a += __shfl_xor_sync(mask, upper ? sums[0] : sums[2], 8);
  b += __shfl_xor_sync(mask, upper ? sums[1] : sums[3], 8);
  double mine = odd ? b : a;
  mine += __shfl_xor_sync(mask, odd ? a : b, 4);
  mine += __shfl_xor_sync(mask, mine, 2);
  mine += __shfl_xor_sync(mask, mine, 1);
  const float factor = norm_factor(mine, eps);
#pragma unroll
  for (int h = 0; h < 4; ++h) factors[h] = __shfl_sync(mask, factor, h * 4, 16);
}

// The same for one head, added in the same order.
__device__ __forceinline__ void norm_factors(const double (&sums)[1], float eps, int, uint32_t mask,
                                             float (&factors)[1]) {
  double sum = sums[0];
#pragma unroll
  for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(mask, sum, distance);
  factors[0] = norm_factor(sum, eps);
}

// One chunk's way from the projections to where it belongs, by the sixteen lanes of `mask`. In two parts: the
// first reads what no kernel of a step writes, the second is for after the wait.
template <typename T>
struct StoreWork {
  StoreChunk c;
  StoreRaw weight = {};
  int first, low, high;  // channels of this lane: of the rotary table, and the first of its four and partners
  bool turns;

  __device__ __forceinline__ StoreWork(const StoreParams& p, const StoreChunk& chunk, int lane) : c(chunk) {
    first = lane * T::kPairs;
    const int within = first & (p.half - 1);
    low = 2 * (first - within) + within, high = low + p.half;
    turns = c.norm != nullptr && first < p.half;
    if (c.norm != nullptr) weight.load(c.norm, low, high);
  }

  __device__ __forceinline__ void run(const StoreParams& p, int lane, uint32_t mask) {
    StoreRaw raw[T::kHeads] = {};
#pragma unroll
    for (int h = 0; h < T::kHeads; ++h)
      if (h < c.heads) raw[h].load(c.from + h * T::kDim, low, high);
    float2 turn[4] = {};
    if (turns) {
      const auto* from = reinterpret_cast<const float4*>(p.rotary + int64_t{c.row} * p.half + first);
      const float4 a = from[0], b = from[1];
      turn[0] = make_float2(a.x, a.y), turn[1] = make_float2(a.z, a.w);
      turn[2] = make_float2(b.x, b.y), turn[3] = make_float2(b.z, b.w);
    }
    float factors[T::kHeads] = {};
    if (c.norm != nullptr) {
      double sums[T::kHeads];
#pragma unroll
      for (int h = 0; h < T::kHeads; ++h) sums[h] = h < c.heads ? StoreLane(raw[h]).sum_of_squares() : 0.0;
      norm_factors(sums, p.eps, lane, mask, factors);
    }
    if (!c.writes) return;
#pragma unroll
    for (int h = 0; h < T::kHeads; ++h) {
      if (h >= c.heads) continue;
      StoreLane head(raw[h]);
      if (c.norm != nullptr) head.scale(factors[h], StoreLane(weight));
      if (turns) head.turn(turn);
      write(head, h);
    }
  }

  __device__ __forceinline__ void write(const StoreLane& head, int h) const {
    if (c.e4m3) {
      const float scale = c.scales == nullptr ? 1.0f : c.scales[2 * h];
      char* to = c.to + h * c.head_stride;
      *reinterpret_cast<uint32_t*>(to + low) = head.as_e4m3(0, scale);
      *reinterpret_cast<uint32_t*>(to + high) = head.as_e4m3(4, scale);
    } else {
      char* to = c.to + h * c.head_stride * 2;
      *reinterpret_cast<uint2*>(to + low * 2) = head.as_bf16(0);
      *reinterpret_cast<uint2*>(to + high * 2) = head.as_bf16(4);
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads, T::kMinCtasPerSm)
    store_kernel(const __grid_constant__ StoreParams p) {
  const uint32_t chunks = store_chunks<T>(p), lane = threadIdx.x % T::kLanes;
  const uint32_t unit = blockIdx.x * T::kChunksPerCta + threadIdx.x / T::kLanes, row = unit / chunks;
  hopper::let_next_kernel_start();
  if (row >= p.rows) return;
  StoreWork<T> work(p, store_chunk<T>(p, row, unit % chunks), lane);
  hopper::wait_for_previous_kernel();
  work.run(p, lane, 0xffffu << (threadIdx.x & 16));
}

struct RotaryTraits {
  static constexpr int kThreads = 256;
};

template <typename T>
__global__ void __launch_bounds__(T::kThreads) rotary_kernel(const __grid_constant__ RotaryParams p) {
  const int64_t at = int64_t{blockIdx.x} * T::kThreads + threadIdx.x;
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  if (at >= int64_t{p.rows} * p.half) return;
  const float position = static_cast<float>(p.positions[at / p.half]);
  double sin, cos;
  sincos(static_cast<double>(__fmul_rn(position, p.inv_freq[at % p.half])), &sin, &cos);
  p.out[at] =
      make_float2(__fmul_rn(static_cast<float>(cos), p.factor), __fmul_rn(static_cast<float>(sin), p.factor));
}

}  // namespace msa::sm90
