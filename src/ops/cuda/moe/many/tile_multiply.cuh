// SPDX-License-Identifier: Apache-2.0
// A warpgroup's products with one stage of weights, 64 columns: bf16 from shared memory, cells by way of
// registers. Both sum in the same order, so that cells give the bits of the bf16 matrix they stand for.
#pragma once

#include "ops/cuda/mx/decode.cuh"
#include "sm90/wgmma.cuh"

namespace sparrow::ops::cuda {

// What 16 rows by 64 columns of weights take in a stage.
template <MatrixFormat kFormat>
inline constexpr int kStageCellBytes = is_mx(kFormat) ? cell_bytes(kFormat) : kCellRows* kCellColumns * 2;

// Of kBlocks blocks of 64 weight rows by kN tokens.
template <int kN, int kBlocks>
struct Sums {
  float d[kBlocks][kN / 2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kBlocks * kN / 2; ++i) d[i / (kN / 2)][i % (kN / 2)] = 0;
  }
  // Waits for the last stage.
  __device__ __forceinline__ void finish() {
    hopper::wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) hopper::wgmma_pin(d[m]);
  }
};

// Stages are multiplied one after the other, and while one is, the next may be queued.
template <MatrixFormat kFormat, int kN, int kBlocks>
struct Products : Sums<kN, kBlocks> {
  using Sums<kN, kBlocks>::d;

  // Queues a stage. `previous_is_done` is called as soon as the stage before is. `w`: this warpgroup's rows;
  // `x`: descriptor of the tokens.
  template <typename Done>
  __device__ __forceinline__ void multiply(const uint8_t* w, uint64_t x, const Done& previous_is_done) {
    const uint64_t rows = hopper::wgmma_descriptor(w);
    hopper::wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s)
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        hopper::wgmma<kN>(d[m], rows + s * 2 + m * 64 * 128 / 16, x + s * 2, 1);
    hopper::wgmma_commit();
    hopper::wgmma_wait<1>();
    previous_is_done();
  }
};

template <MatrixFormat kFormat, int kN, int kBlocks>
requires(is_mx(kFormat)) struct Products<kFormat, kN, kBlocks> : Sums<kN, kBlocks> {
  using Sums<kN, kBlocks>::d;
  // Steps of 16 columns that are decoded together, while those before them are multiplied. A narrow tile's
  // products take less time than it takes to wait for them, and it has registers to spare.
  static constexpr int kSteps = kN <= 48 ? 2 : 1;
  uint32_t a[2][kSteps][kBlocks][4];

  template <typename Done>
  __device__ __forceinline__ void multiply(const uint8_t* w, uint64_t x, const Done& previous_is_done) {
    const int warp = threadIdx.x % 128 / 32;
    LaneCell<kFormat> cells[kBlocks];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
      cells[m].load(hopper::smem_address(w) + (m * 4 + warp) * kStageCellBytes<kFormat>);
    multiply_steps<0>(cells, x);
    previous_is_done();
    multiply_steps<1>(cells, x);
    if constexpr (kSteps == 1) {
      multiply_steps<2>(cells, x);
      multiply_steps<3>(cells, x);
    }
  }

 private:
  template <int kGroup>
  __device__ __forceinline__ void multiply_steps(const LaneCell<kFormat> (&cells)[kBlocks], uint64_t x) {
    uint32_t(&operands)[kSteps][kBlocks][4] = a[kGroup % 2];
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) {
      cells[m].template decode<kGroup * kSteps>(operands[0][m]);
      if constexpr (kSteps == 2) cells[m].template decode<kGroup * 2 + 1>(operands[1][m]);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) hopper::wgmma_pin(operands[s][m]);
    }
    hopper::wgmma_fence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        hopper::wgmma<kN>(d[m], operands[s][m], x + (kGroup * kSteps + s) * 2, 1);
    hopper::wgmma_commit();
    hopper::wgmma_wait<1>();
  }
};

}  // namespace sparrow::ops::cuda
