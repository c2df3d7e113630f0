// SPDX-License-Identifier: Apache-2.0
// A warp for each row, which it reads twice: the second time it comes from the L1.
#include "ops/cuda/mx/quantise_rows.h"

#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/mx/e4m3.cuh"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps * 32)
    quantise_rows_kernel(const __grid_constant__ QuantiseRowsArgs p) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  hopper::wait_for_previous_kernel();
  hopper::let_next_kernel_start();
  if (row >= p.rows) return;
  const auto* const x = reinterpret_cast<const uint4*>(p.x + int64_t{row} * p.columns);
  const int eights = p.columns / 8;
  float largest = 0;
#pragma unroll 8
  for (int i = lane; i < eights; i += 32) largest = fmaxf(largest, largest_of(x[i]));
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, mask));
  const float factor = e4m3_factor(largest);
  uint8_t* const codes = p.out.codes + int64_t{row} * p.columns + e4m3_eight_at();
#pragma unroll 8
  for (int first = 0; first < eights; first += 32) {
    const int i = first + lane;
    const uint2 eight = e4m3_eight(x[min(i, eights - 1)], factor);
    if (i < eights) *reinterpret_cast<uint2*>(codes + i / 4 * 32) = eight;
  }
  if (lane == 0) p.out.scales[row] = largest / kLargestE4m3;
}

}  // namespace

void quantise_rows(const QuantiseRowsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return;
  Arguments("quantise_rows")
      .pointer("x", args.x)
      .pointer("codes", args.out.codes)
      .pointer("scales", args.out.scales, alignof(float))
      .range("rows", args.rows, 1, INT_MAX)
      .range("columns", args.columns, 32, INT_MAX)
      .multiple("columns", args.columns, 32);
  SPARROW_CUDA(hopper::launch_dependent(quantise_rows_kernel,
                                        {dim3(ceil_div(args.rows, kWarps)), kWarps * 32}, stream, args));
}

}  // namespace sparrow::ops::cuda
