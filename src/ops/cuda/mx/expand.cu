// SPDX-License-Identifier: Apache-2.0
// One warp for each cell. A lane decodes pairs of columns, four lanes hold eight columns of a row; they trade
// pairs, so that each writes 16 bytes and all of them 64 of a row.
#include "device/cuda/check.h"
#include "ops/cuda/mx/decode.cuh"
#include "ops/cuda/mx/e4m3.cuh"
#include "ops/cuda/mx/expand.h"
#include "sm90/launch.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kWarps = 8;

// word[i] of lane 4 g + q becomes word[q] of lane 4 g + i.
__device__ __forceinline__ void transpose_in_quads(uint32_t (&word)[4]) {
  const int q = threadIdx.x % 4;
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (q & distance) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const uint32_t low = word[i], high = word[i + distance];
      const uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, distance);
      word[i] = upper ? got : low;
      word[i + distance] = upper ? high : got;
    }
  }
}

// Columns 32 kGroup to 32 kGroup + 31 of rows g + 8 kHigh.
template <MatrixFormat kFormat, int kGroup, int kHigh>
__device__ __forceinline__ uint4 decode_eight(const LaneCell<kFormat>& cell) {
  uint32_t word[4];
  cell.template decode_row<2 * kGroup, kHigh>(word[0], word[1]);
  cell.template decode_row<2 * kGroup + 1, kHigh>(word[2], word[3]);
  transpose_in_quads(word);
  return make_uint4(word[0], word[1], word[2], word[3]);
}

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32)
    expand_kernel(const uint8_t* cells, __nv_bfloat16* out, int num_cells, int cells_per_row) {
  const int index = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (index >= num_cells) return hopper::wait_for_previous_kernel();
  const uint8_t* const from = cells + int64_t{index} * cell_bytes(kFormat);
  LaneCell<kFormat> cell;
#pragma unroll
  for (int i = 0; i < cell.kChunks; ++i)
    cell.codes[i] = __ldg(reinterpret_cast<const uint4*>(from) + i * 32 + lane);
  cell.scales = __ldg(reinterpret_cast<const uint32_t*>(from + cell_code_bytes(kFormat)) + lane / 4);

  // The memory that it writes to belongs to the product before until here.
  hopper::wait_for_previous_kernel();
  const int64_t columns = int64_t{cells_per_row} * kCellColumns;
  const int64_t row = int64_t{index / cells_per_row} * kCellRows + lane / 4;
  __nv_bfloat16* const to = out + row * columns + index % cells_per_row * kCellColumns + lane % 4 * 8;
  const auto write = [&](int high, int group, const uint4& eight) {
    *reinterpret_cast<uint4*>(to + high * 8 * columns + group * kScaleGroup) = eight;
  };
  write(0, 0, decode_eight<kFormat, 0, 0>(cell));
  write(0, 1, decode_eight<kFormat, 1, 0>(cell));
  write(1, 0, decode_eight<kFormat, 0, 1>(cell));
  write(1, 1, decode_eight<kFormat, 1, 1>(cell));
}

// A folded row has one scale, and its first cell shows it.
__global__ void __launch_bounds__(kWarps * 32)
    expand_e4m3_kernel(const uint8_t* cells, const E4m3Rows out, int num_cells, int cells_per_row) {
  constexpr MatrixFormat kFormat = MatrixFormat::kMxfp8;
  const int index = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (index >= num_cells) return hopper::wait_for_previous_kernel();
  const uint8_t* const from = cells + int64_t{index} * cell_bytes(kFormat);
  const uint4 left = __ldg(reinterpret_cast<const uint4*>(from) + lane);
  const uint4 right = __ldg(reinterpret_cast<const uint4*>(from) + 32 + lane);
  const uint8_t scale = __ldg(from + cell_scale_at(kFormat, lane % kCellRows, 0));
  uint32_t word[2][4];  // of rows g and g + 8
  e4m3_quads(left.x, left.z, word[0][0], word[0][1]), e4m3_quads(right.x, right.z, word[0][2], word[0][3]);
  e4m3_quads(left.y, left.w, word[1][0], word[1][1]), e4m3_quads(right.y, right.w, word[1][2], word[1][3]);
#pragma unroll
  for (auto& row : word) transpose_in_quads(row);

  hopper::wait_for_previous_kernel();
  const int64_t columns = int64_t{cells_per_row} * kCellColumns;
  const int64_t first_row = int64_t{index / cells_per_row} * kCellRows;
  const int column = index % cells_per_row * kCellColumns;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const uint32_t(&w)[4] = word[high];
    *reinterpret_cast<uint4*>(out.codes + (first_row + high * 8 + lane / 4) * columns + column +
                              lane % 4 * 16) = make_uint4(w[0], w[1], w[2], w[3]);
  }
  if (column == 0 && lane < kCellRows) out.scales[first_row + lane] = folded_number(scale);
}

}  // namespace

void expand(const DeviceMatrix& w, const E4m3Rows& out, cudaStream_t stream) {
  const Arguments arguments("expand");
  check_matrix(arguments, "w", w);
  arguments.require("w", w.format == MatrixFormat::kMxfp8, "must be MXFP8")
      .pointer("codes", out.codes)
      .pointer("scales", out.scales, alignof(float));
  const int per_row = w.cols / kCellColumns, count = w.rows / kCellRows * per_row;
  SPARROW_CUDA(hopper::launch_dependent(expand_e4m3_kernel,
                                        {dim3((count + kWarps - 1) / kWarps), kWarps * 32}, stream, w.cells(),
                                        out, count, per_row));
}

void expand(const DeviceMatrix& w, __nv_bfloat16* out, cudaStream_t stream) {
  const Arguments arguments("expand");
  check_matrix(arguments, "w", w);
  arguments.require("w", is_mx(w.format), "must be MXFP8 or MXFP4").pointer("out", out);
  const int per_row = w.cols / kCellColumns, count = w.rows / kCellRows * per_row;
  const auto kernel = w.format == MatrixFormat::kMxfp8 ? expand_kernel<MatrixFormat::kMxfp8>
                                                       : expand_kernel<MatrixFormat::kMxfp4>;
  SPARROW_CUDA(hopper::launch_dependent(kernel, {dim3((count + kWarps - 1) / kWarps), kWarps * 32}, stream,
                                        w.cells(), out, count, per_row));
}

}  // namespace sparrow::ops::cuda
