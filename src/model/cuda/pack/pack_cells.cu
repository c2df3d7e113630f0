// SPDX-License-Identifier: Apache-2.0
// Codes and scales into cells: a thread moves the 32 numbers of a row that share a scale.
#include <algorithm>

#include "model/cuda/pack/pack_cells.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow {
namespace {

using namespace ops::cuda;

constexpr int kThreads = 256;
constexpr int kMaxCtas = 132 * 8;

// A group as files have it.
template <MatrixFormat kFormat>
struct Group {
  static constexpr int kBytes = static_cast<int>(kScaleGroup / values_per_element(kFormat));

  alignas(16) uint8_t codes[kBytes];
  uint8_t scale;

  __device__ uint32_t code(int column) const {
    return kFormat == MatrixFormat::kMxfp8 ? codes[column] : codes[column / 2] >> (column % 2 * 4) & 15;
  }
  // Whether a cell has no place for it.
  __device__ bool is_bad() const {
    bool bad = scale > max_cell_scale(kFormat);
    if constexpr (kFormat == MatrixFormat::kMxfp8)
      for (const uint8_t code : codes) bad |= (code & 0x7f) == 0x7f;
    return bad;
  }
};

// The group of a part's row, counted from the target's first, that starts in a column.
template <MatrixFormat kFormat>
__device__ void write_group(const PackTarget& t, int64_t row, int64_t col, const Group<kFormat>& group) {
  const int64_t part_row = t.first_row + row;
  const int64_t out_row = t.matrix_row + part_row / t.row_run * t.row_run_stride + part_row % t.row_run;
  const int64_t out_col = col / t.col_run * t.col_run_stride + col % t.col_run;
  const int64_t index = out_row / kCellRows * (t.columns / kCellColumns) + out_col / kCellColumns;
  uint8_t* const cell = static_cast<uint8_t*>(t.out) + index * cell_bytes(kFormat);
  const int cell_row = static_cast<int>(out_row % kCellRows);
  const int cell_col = static_cast<int>(out_col % kCellColumns);

  // A word holds columns 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of 16, and with MXFP4 those of the next 16.
  constexpr int kColumns = kFormat == MatrixFormat::kMxfp8 ? 16 : 32;
#pragma unroll
  for (int first = 0; first < kScaleGroup; first += kColumns) {
    uint32_t words[4] = {};
#pragma unroll
    for (int c = first; c < first + kColumns; ++c) words[c % 8 / 2] ^= cell_bits(kFormat, c, group.code(c));
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const int at = cell_word_at(kFormat, cell_row, cell_col + first + 2 * q);
      *reinterpret_cast<uint32_t*>(cell + at) = words[q];
    }
  }
  cell[cell_scale_at(kFormat, cell_row, cell_col / static_cast<int>(kScaleGroup))] =
      cell_scale(kFormat, group.scale);
}

// Calls place(row, group) for each group of the target.
template <typename Place>
__device__ void for_each_group(const PackTarget& t, const Place& place) {
  const int64_t per_row = t.num_cols / kScaleGroup, count = t.num_rows * per_row;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads)
    place(i / per_row, i % per_row);
}

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kThreads) pack_cells_kernel(const PackTarget t, const PackSource source) {
  constexpr int kVectors = Group<kFormat>::kBytes / 16;
  const int64_t per_row = t.num_cols / kScaleGroup;
  for_each_group(t, [&](int64_t row, int64_t index) {
    const int64_t at = row * per_row + index;
    const auto* const from = static_cast<const uint4*>(source.values) + at * kVectors;
    Group<kFormat> group;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) reinterpret_cast<uint4*>(group.codes)[i] = from[i];
    group.scale = source.scales[at];
    if (group.is_bad())
      atomicMin(source.faults.first, source.faults.tag + static_cast<uint64_t>(t.first_row * per_row + at));
    write_group(t, row, index * kScaleGroup, group);
  });
}

template <MatrixFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    random_cells_kernel(const PackTarget t, const RandomCells source) {
  // Lanes look up different entries, and the memory of parameters is made for one at a time.
  __shared__ RandomBytes codes, scales;
  codes.key = source.codes.key, codes.table[threadIdx.x] = source.codes.table[threadIdx.x];
  scales.key = source.scales.key, scales.table[threadIdx.x] = source.scales.table[threadIdx.x];
  __syncthreads();
  for_each_group(t, [&](int64_t row, int64_t index) {
    const int64_t number = (source.first_row + row) * source.whole_cols + source.first_col;
    const int64_t at = number / kScaleGroup + index;
    Group<kFormat> group;
#pragma unroll
    for (int i = 0; i < Group<kFormat>::kBytes; ++i)
      group.codes[i] = codes.at(at * Group<kFormat>::kBytes + i);
    group.scale = scales.at(at);
    write_group(t, row, index * kScaleGroup, group);
  });
}
static_assert(kThreads == std::size(RandomBytes{}.table));

template <typename Source>
cudaError_t launch(void (*mxfp8)(PackTarget, Source), void (*mxfp4)(PackTarget, Source),
                   const PackTarget& target, const Source& source, cudaStream_t stream) {
  const int64_t count = target.num_rows * (target.num_cols / kScaleGroup);
  if (count == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, kMaxCtas));
  (target.format == MatrixFormat::kMxfp8 ? mxfp8 : mxfp4)<<<ctas, kThreads, 0, stream>>>(target, source);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_pack_cells(const PackTarget& target, const PackSource& source, cudaStream_t stream) {
  return launch(pack_cells_kernel<MatrixFormat::kMxfp8>, pack_cells_kernel<MatrixFormat::kMxfp4>, target,
                source, stream);
}

cudaError_t launch_random_cells(const PackTarget& target, const RandomCells& source, cudaStream_t stream) {
  return launch(random_cells_kernel<MatrixFormat::kMxfp8>, random_cells_kernel<MatrixFormat::kMxfp4>, target,
                source, stream);
}

}  // namespace sparrow
