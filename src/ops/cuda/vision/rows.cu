// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/vision/rows.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/rows_device.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kThreads = 256, kRowsOfCta = kThreads / 32;

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// A warp for each row, kVectors times eight columns for each lane.
template <int kVectors>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(const __grid_constant__ LayerNormArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x) * kRowsOfCta + static_cast<int>(threadIdx.x) / 32;
  if (row >= p.rows) return;
  const auto column_of = [](int v) { return (v * 32 + static_cast<int>(threadIdx.x) % 32) * kVector; };
  float x[kVectors][kVector];
  float sum = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = column_of(v);
    const Vector numbers = load_vector_if(column < p.hidden, p.x + int64_t{row} * p.hidden + column);
#pragma unroll
    for (int e = 0; e < kVector / 2; ++e) {
      const float2 pair = __bfloat1622float2(numbers.pair[e]);
      x[v][2 * e] = pair.x, x[v][2 * e + 1] = pair.y;
      sum += pair.x + pair.y;
    }
  }
  const float mean = warp_sum(sum) / static_cast<float>(p.hidden);
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (column_of(v) >= p.hidden) continue;
#pragma unroll
    for (int e = 0; e < kVector; ++e) {
      x[v][e] -= mean;
      squares = fmaf(x[v][e], x[v][e], squares);
    }
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(p.hidden) + p.eps);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = column_of(v);
    if (column >= p.hidden) continue;
    float weight[kVector], bias[kVector];
#pragma unroll
    for (int e = 0; e < kVector; e += 4) {
      *reinterpret_cast<float4*>(weight + e) = __ldg(reinterpret_cast<const float4*>(p.weight + column + e));
      *reinterpret_cast<float4*>(bias + e) = __ldg(reinterpret_cast<const float4*>(p.bias + column + e));
    }
    Vector out;
#pragma unroll
    for (int e = 0; e < kVector; e += 2)
      out.pair[e / 2] = __floats2bfloat162_rn(x[v][e] * scale * weight[e] + bias[e],
                                              x[v][e + 1] * scale * weight[e + 1] + bias[e + 1]);
    store_vector(p.out + int64_t{row} * p.hidden + column, out);
  }
}

__global__ void __launch_bounds__(kThreads) split_kernel(const __grid_constant__ SplitTermsArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const float* const x = p.x + int64_t{blockIdx.x} * p.numbers;
  __nv_bfloat16* const out = p.out + int64_t{blockIdx.x} * 3 * p.numbers;
  for (int i = threadIdx.x; i < p.numbers; i += kThreads) {
    const __nv_bfloat16 high = __float2bfloat16_rn(x[i]);
    const __nv_bfloat16 low = __float2bfloat16_rn(x[i] - __bfloat162float(high));
    out[i] = high;
    out[p.numbers + i] = p.is_matrix ? high : low;
    out[2 * p.numbers + i] = p.is_matrix ? low : high;
  }
}

__global__ void __launch_bounds__(kThreads) rotary_kernel(const __grid_constant__ PatchRotaryArgs p) {
  constexpr int kPairs = kTowerHeadDim / 2;
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= int64_t{p.rows} * kPairs) return;
  const int row = static_cast<int>(i / kPairs), pair = static_cast<int>(i % kPairs);
  float2 turn = {1, 0};
  if (pair < 3 * p.angles)
    turn = p.axis[int64_t{p.places[3 * row + pair / p.angles]} * p.angles + pair % p.angles];
  p.out[i] = turn;
}

__global__ void __launch_bounds__(kThreads) scatter_kernel(const __grid_constant__ ScatterRowsArgs p) {
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  const int64_t from = blockIdx.x, to = p.rows[from];
  if (to < 0) return;
  for (int i = threadIdx.x * kVector; i < p.columns; i += kThreads * kVector)
    store_vector(p.to + to * p.columns + i, load_vector(p.from + from * p.columns + i));
}

}  // namespace

void layer_norm(const LayerNormArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  Arguments("layer_norm")
      .range("rows", args.rows, 1, INT_MAX)
      .range("hidden", args.hidden, kVector, kMaxTowerHidden)
      .multiple("hidden", args.hidden, kVector)
      .pointer("x", args.x)
      .pointer("weight", args.weight)
      .pointer("bias", args.bias)
      .pointer("out", args.out);
  const hopper::Launch launch{dim3(ceil_div(args.rows, kRowsOfCta)), kThreads};
  const int vectors = ceil_div(args.hidden, 32 * kVector);
  if (vectors <= 1)
    SPARROW_CUDA(hopper::launch_dependent(layer_norm_kernel<1>, launch, stream, args));
  else if (vectors <= 5)
    SPARROW_CUDA(hopper::launch_dependent(layer_norm_kernel<5>, launch, stream, args));
  else
    SPARROW_CUDA(hopper::launch_dependent(layer_norm_kernel<8>, launch, stream, args));
}

void split_terms(const SplitTermsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  Arguments("split_terms")
      .range("rows", args.rows, 1, INT_MAX)
      .range("numbers", args.numbers, 1, INT_MAX / 3)
      .pointer("x", args.x, 4)
      .pointer("out", args.out);
  SPARROW_CUDA(hopper::launch_dependent(split_kernel, {dim3(args.rows), kThreads}, stream, args));
}

void patch_rotary(const PatchRotaryArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  Arguments("patch_rotary")
      .range("rows", args.rows, 1, INT_MAX / kTowerHeadDim)
      .range("angles", args.angles, 1, kTowerHeadDim / 6)
      .pointer("places", args.places, 4)
      .pointer("axis", args.axis, 8)
      .pointer("out", args.out, 8);
  const dim3 grid(ceil_div(args.rows * (kTowerHeadDim / 2), kThreads));
  SPARROW_CUDA(hopper::launch_dependent(rotary_kernel, {grid, kThreads}, stream, args));
}

void scatter_rows(const ScatterRowsArgs& args, cudaStream_t stream) {
  if (args.count == 0) return;
  Arguments("scatter_rows")
      .range("count", args.count, 1, INT_MAX)
      .range("columns", args.columns, kVector, INT_MAX)
      .multiple("columns", args.columns, kVector)
      .pointer("from", args.from)
      .pointer("rows", args.rows, 4)
      .pointer("to", args.to);
  SPARROW_CUDA(hopper::launch_dependent(scatter_kernel, {dim3(args.count), kThreads}, stream, args));
}

}  // namespace sparrow::ops::cuda
