// SPDX-License-Identifier: Apache-2.0
// A cell times the same 64 columns of at most eight rows of activations, by one warp on mma.sync.
#pragma once

#include "ops/cuda/mx/decode.cuh"
#include "sm90/mma.cuh"

namespace sparrow::ops::cuda {

// The B operands of a cell's four products, by ldmatrix: inputs have their natural order. Rows that lie 16
// bytes more than a multiple of 128 apart meet on no bank.
struct CellTokens {
  uint32_t b[8];

  // `row`: the address of the first of the 64 columns in row lane % 8.
  __device__ __forceinline__ void load(uint32_t row) {
    const uint32_t address = row + threadIdx.x % 32 / 8 * 16;
    hopper::ldmatrix_x4(*reinterpret_cast<uint32_t(*)[4]>(b), address);
    hopper::ldmatrix_x4(*reinterpret_cast<uint32_t(*)[4]>(b + 4), address + 64);
  }
};

// Sums of 16 weight rows in M and eight tokens in N, in kChains chains over the products in turn.
template <MatrixFormat kFormat, int kChains>
__device__ __forceinline__ void multiply_cell(float (&sums)[kChains][4], const LaneCell<kFormat>& cell,
                                              const CellTokens& tokens) {
  const auto step = [&]<int kStep>() {
    uint32_t a[4];
    cell.template decode<kStep>(a);
    hopper::mma_16x8x16(sums[kStep % kChains], a, tokens.b[kStep * 2], tokens.b[kStep * 2 + 1]);
  };
  step.template operator()<0>();
  step.template operator()<1>();
  step.template operator()<2>();
  step.template operator()<3>();
}

}  // namespace sparrow::ops::cuda
