// SPDX-License-Identifier: Apache-2.0
// Cells times rows of activations, by one warp on mma.sync.
//
// Few rows are bound by decoding, or by the power that it takes. So operands are not scaled before the
// product: the codes' own numbers are multiplied, and a group's sums of 32 columns get the scale. That is
// exact as well, for less than half of the multiplications. The numbers in a cell are 2^-120 or 2^-126 too
// small, which is where f32 ends: so activations are 2^64 larger, and sums that much in the end. (An
// activation of 2^64 would be infinite.) Whoever makes activations for a product with cells may store them
// so. Of rows so many that a cell meets four tiles of them or more, there are more sums than codes, and the
// operands are scaled.
#pragma once

#include "ops/cuda/mx/decode.cuh"
#include "sm90/mma.cuh"

namespace sparrow::ops::cuda {

// What activations are to be multiplied with before their products with cells, and sums after them.
inline constexpr float kCellTokensUnit = 0x1p64f, kCellSumsUnit = 1 / kCellTokensUnit;

// A lane's activations, 64 columns of one of eight rows, from what they are to what cells are multiplied
// with.
__device__ __forceinline__ void prepare_tokens(uint32_t (&b)[8]) {
#pragma unroll
  for (uint32_t& pair : b) pair = multiply_bf16x2(pair, 0x5F805F80u);  // 2^64
}

// The B operands of a cell's four products, by ldmatrix: inputs have their natural order. Rows that lie 16
// bytes more than a multiple of 128 apart meet on no bank.
// kPrepared: they have been stored times kCellTokensUnit.
template <bool kPrepared = false>
struct CellTokens {
  uint32_t b[8];

  // Where this lane reads, of a row whose 64 columns begin at `row`: that of lane % 8.
  __device__ __forceinline__ static uint32_t address(uint32_t row) { return row + threadIdx.x % 32 / 8 * 16; }

  __device__ __forceinline__ void load(uint32_t address) {
    hopper::ldmatrix_x4(*reinterpret_cast<uint32_t(*)[4]>(b), address);
    hopper::ldmatrix_x4(*reinterpret_cast<uint32_t(*)[4]>(b + 4), address + 64);
    if constexpr (!kPrepared) prepare_tokens(b);
  }
};

// A cell as the A operand, scaled.
template <MatrixFormat kFormat>
struct ScaledCellOperand {
  LaneCell<kFormat> cell;

  __device__ __forceinline__ void load(uint32_t at) { cell.load(at); }
  // Of its four products.
  __device__ __forceinline__ void operand(uint32_t (&a)[4][4]) const {
    cell.template decode<0>(a[0]), cell.template decode<1>(a[1]);
    cell.template decode<2>(a[2]), cell.template decode<3>(a[3]);
  }
};

// Not yet scaled.
template <MatrixFormat kFormat>
struct CellOperand {
  LaneCell<kFormat> cell;  // no scales
  float scales[2][2];      // [group][row g, g + 8]

  __device__ __forceinline__ void load(const CellAddress<kFormat>& at, int offset) {
    cell.load_codes(at, offset);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint32_t byte;
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(at.scales + offset + i) : "memory");
      scales[i / 2][i % 2] = __uint_as_float(byte << 23);
    }
  }
  __device__ __forceinline__ void load(uint32_t at) {
    load(CellAddress<kFormat>(at), 0);
  }
  // Of its four products.
  __device__ __forceinline__ void operand(uint32_t (&a)[4][4]) const {
    cell.template unscaled<0>(a[0]), cell.template unscaled<1>(a[1]);
    cell.template unscaled<2>(a[2]), cell.template unscaled<3>(a[3]);
  }
  // A group's products, to the sums.
  __device__ __forceinline__ void add(float (&sums)[4], const float (&part)[4], int group) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = fmaf(part[i], scales[group][i / 2], sums[i]);
  }
};

// Sums of 16 weight rows in M and eight tokens in N, for kRuns cells by the same tokens. The products of one
// group depend on each other, and those of others come between them.
template <MatrixFormat kFormat, int kRuns>
__device__ __forceinline__ void multiply_cells(float (&sums)[kRuns][4],
                                               const CellOperand<kFormat> (&w)[kRuns],
                                               const uint32_t (&b)[8]) {
  uint32_t a[kRuns][4][4];
#pragma unroll
  for (int r = 0; r < kRuns; ++r) w[r].operand(a[r]);
  float part[2][kRuns][4];
#pragma unroll
  for (int step = 0; step < 4; step += 2)
#pragma unroll
    for (int r = 0; r < kRuns; ++r)
      hopper::mma_16x8x16_first(part[step / 2][r], a[r][step], b[step * 2], b[step * 2 + 1]);
#pragma unroll
  for (int step = 1; step < 4; step += 2)
#pragma unroll
    for (int r = 0; r < kRuns; ++r)
      hopper::mma_16x8x16(part[step / 2][r], a[r][step], b[step * 2], b[step * 2 + 1]);
#pragma unroll
  for (int group = 0; group < 2; ++group)
#pragma unroll
    for (int r = 0; r < kRuns; ++r) w[r].add(sums[r], part[group][r], group);
}

}  // namespace sparrow::ops::cuda
