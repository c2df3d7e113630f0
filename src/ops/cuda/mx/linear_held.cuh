// SPDX-License-Identifier: Apache-2.0
// Linear layers of one row whose weights are cells, held in registers. A warp holds some cells of 16 rows,
// most of them decoded before the wait; warps that share the rows add up through shared memory.
//
// x is the B operand, and one column of eight would do. Instead column p gets the eight columns p of each
// cell's 64 and zeros else, so that a lane needs one word of x for a whole cell; the eight sums are added at
// the end.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/mx/decode.cuh"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {

struct CellsHeldParams {
  const uint8_t* w = nullptr;
  const __nv_bfloat16* x = nullptr;
  __nv_bfloat16* out = nullptr;
  int out_features = 0, in_features = 0;
  int warps_of_rows = 0;  // that share 16 rows
};

inline constexpr int kCellsHeldWarps = 12;  // of a CTA

// Read once, and not again before all other layers' have passed.
template <MatrixFormat kFormat>
__device__ __forceinline__ void load_cell(LaneCell<kFormat>& cell, const uint8_t* from) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < LaneCell<kFormat>::kChunks; ++i)
    cell.codes[i] = hopper::load_once(from + i * 512 + lane * 16, hopper::kEvictFirst);
  cell.scales = __ldg(reinterpret_cast<const uint32_t*>(from + cell_code_bytes(kFormat)) + lane / 4);
}

// A step of 16 columns: `word` holds columns 8 p + 2 q and the next of the cell's.
template <int kStep>
__device__ __forceinline__ void multiply_held_step(float (&sums)[4], const uint32_t (&a)[4], uint32_t word) {
  const int piece = threadIdx.x % 32 / 4;
  hopper::mma_16x8x16(sums, a, piece == 2 * kStep ? word : 0, piece == 2 * kStep + 1 ? word : 0);
}

// kCells of a warp, the first kDecoded of them as bf16 numbers.
template <MatrixFormat kFormat, int kCells, int kDecoded>
struct HeldCells {
  static constexpr int kCodes = kCells - kDecoded;
  uint32_t decoded[kDecoded][4][4];  // [cell][step]
  LaneCell<kFormat> codes[kCodes + 1];

  __device__ __forceinline__ void load(const uint8_t* first, int cells) {
    LaneCell<kFormat> cell[kDecoded];
    const auto at = [&](int i) { return first + min(i, cells - 1) * cell_bytes(kFormat); };
#pragma unroll
    for (int i = 0; i < kDecoded; ++i) load_cell(cell[i], at(i));
#pragma unroll
    for (int i = 0; i < kCodes; ++i) load_cell(codes[i], at(kDecoded + i));
#pragma unroll
    for (int i = 0; i < kDecoded; ++i) {
      cell[i].template decode<0>(decoded[i][0]), cell[i].template decode<1>(decoded[i][1]);
      cell[i].template decode<2>(decoded[i][2]), cell[i].template decode<3>(decoded[i][3]);
    }
  }

  template <int kStep>
  __device__ __forceinline__ void multiply_step(float (&sums)[2][4], const uint32_t (&x)[kCells]) const {
#pragma unroll
    for (int i = 0; i < kDecoded; ++i) multiply_held_step<kStep>(sums[i % 2], decoded[i][kStep], x[i]);
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      uint32_t a[4];
      codes[i].template decode<kStep>(a);
      multiply_held_step<kStep>(sums[i % 2], a, x[kDecoded + i]);
    }
  }
  // Rows g and g + 8 of the cells, for all lanes of g.
  __device__ __forceinline__ float2 multiply(const uint32_t (&x)[kCells]) const {
    float sums[2][4] = {};
    multiply_step<0>(sums, x), multiply_step<1>(sums, x), multiply_step<2>(sums, x);
    multiply_step<3>(sums, x);
    float2 sum = {(sums[0][0] + sums[1][0]) + (sums[0][1] + sums[1][1]),
                  (sums[0][2] + sums[1][2]) + (sums[0][3] + sums[1][3])};
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, mask);
      sum.y += __shfl_xor_sync(~0u, sum.y, mask);
    }
    return sum;
  }
};

// As in linear_held.cu there are two passes over the code, of which the first stores nothing.
template <MatrixFormat kFormat, int kCells, int kDecoded>
__global__ void __launch_bounds__(kCellsHeldWarps * 32, 1)
    cells_held_kernel(const __grid_constant__ CellsHeldParams p) {
  __shared__ float sums[kCellsHeldWarps][kCellRows];
  hopper::let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = blockDim.x / 32 / p.warps_of_rows;
  const int group = warp / p.warps_of_rows, cells_of_row = p.in_features / kCellColumns;
  const int first = (warp - group * p.warps_of_rows) * kCells, cells = cells_of_row - first;
  const int row = (blockIdx.x * groups + group) * kCellRows;
  HeldCells<kFormat, kCells, kDecoded> held;
  // Rows past the matrix load what others do; it is not stored.
  held.load(p.w + (int64_t{min(row, p.out_features - kCellRows)} / kCellRows * cells_of_row + first) *
                      cell_bytes(kFormat),
            cells);
  const auto* columns = reinterpret_cast<const uint32_t*>(p.x + first * kCellColumns) + lane;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) hopper::wait_for_previous_kernel();
    uint32_t x[kCells];
#pragma unroll
    for (int i = 0; i < kCells; ++i)
      x[i] = hopper::load_global_32_if(i < cells && !rehearsal, columns + i * (kCellColumns / 2));
    const float2 sum = held.multiply(x);
    if (lane % 4 == 0) sums[warp][lane / 4] = sum.x, sums[warp][lane / 4 + 8] = sum.y;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < groups * kCellRows) {
      const int of_group = threadIdx.x / kCellRows, r = threadIdx.x % kCellRows;
      const int to = (blockIdx.x * groups + of_group) * kCellRows + r;
      float total = 0;
#pragma unroll 1
      for (int w = 0; w < p.warps_of_rows; ++w) total += sums[of_group * p.warps_of_rows + w][r];
      if (to < p.out_features && !rehearsal) p.out[to] = __float2bfloat16(total);
    }
    __syncthreads();  // sums
  }
}

}  // namespace sparrow::ops::cuda
