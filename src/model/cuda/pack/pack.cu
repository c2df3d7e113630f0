// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "device/cuda/arguments.h"
#include "model/cuda/pack/pack.h"
#include "model/cuda/pack/pack_cells.h"
#include "ops/cuda/mx/cell.h"

namespace sparrow {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxCtas = 132 * 8;
constexpr int kWide = 8;  // elements of a 16-byte store of bf16

__device__ float scale_of(uint8_t e8m0) {
  if (e8m0 == kE8M0NaN) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(e8m0 == 0 ? 0x00400000u : uint32_t{e8m0} << 23);  // 2^-127 is subnormal
}

// kWidth elements as they move through registers, in one or two accesses.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth < 16 ? sizeof(T) * kWidth : 16) Pack {
  T at[kWidth];
};

// Reads kWidth elements of a row from where the checkpoint's bytes were copied to.
template <typename T, int kWidth>
struct Reader {
  PackSource source;
  int64_t first_row, num_cols;

  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
    const int64_t at = row * num_cols + col;
    const auto in = *reinterpret_cast<const Pack<T, kWidth>*>(static_cast<const T*>(source.values) + at);
    for (int i = 0; i < kWidth; ++i) out[i] = to_float(in.at[i]);
  }
};

// The same of codes, which a matrix of another format takes expanded.
template <MatrixFormat kFormat, int kWidth>
struct CodeReader {
  PackSource source;
  int64_t first_row, num_cols;

  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
    const int64_t at = row * num_cols + col, group = at / kScaleGroup;
    const float scale = scale_of(source.scales[group]);
    bool is_bad = false;
    for (int i = 0; i < kWidth; ++i) {
      out[i] = value(at + i) * scale;
      is_bad |= out[i] != out[i];
    }
    if (is_bad)
      atomicMin(source.faults.first,
                source.faults.tag + static_cast<uint64_t>(first_row * num_cols / kScaleGroup + group));
  }

  __device__ float value(int64_t at) const {
    const auto* const bytes = static_cast<const uint8_t*>(source.values);
    if constexpr (kFormat == MatrixFormat::kMxfp8) return e4m3_to_float(bytes[at]);
    return e2m1_to_float(static_cast<uint8_t>(bytes[at / 2] >> (at % 2 * 4)));
  }
};

template <int kWidth>
struct RandomReader {
  RandomSource source;
  float step;

  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
    const int64_t first = (source.first_row + row) * source.whole_cols + source.first_col + col;
    for (int i = 0; i < kWidth; ++i) {
      const int64_t at = first + i;
      const uint64_t bits = draw_bits(source.key, at / kElementsPerDraw) >> (16 * (at % kElementsPerDraw));
      // Not contracted: the host rounds after the product as well.
      out[i] = __fadd_rn(source.spread.mean, __fmul_rn(step, static_cast<float>(static_cast<int16_t>(bits))));
    }
  }
};

template <int kWidth>
__device__ void write(const PackTarget& t, int64_t at, const float (&in)[kWidth]) {
  if (t.format == MatrixFormat::kF32) {
    Pack<float, kWidth> out;
    for (int i = 0; i < kWidth; ++i) out.at[i] = in[i];
    *reinterpret_cast<Pack<float, kWidth>*>(static_cast<float*>(t.out) + at) = out;
  } else {
    Pack<BFloat16, kWidth> out;
    for (int i = 0; i < kWidth; ++i) out.at[i] = to_bf16(in[i]);
    *reinterpret_cast<Pack<BFloat16, kWidth>*>(static_cast<BFloat16*>(t.out) + at) = out;
  }
}

template <int kWidth, typename Read>
__global__ void __launch_bounds__(kThreads) place_kernel(const PackTarget t, const Read read) {
  const int64_t per_row = t.num_cols / kWidth;
  const int64_t count = t.num_rows * per_row;
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t row = i / per_row, col = (i - row * per_row) * kWidth;
    const int64_t part_row = t.first_row + row;
    const int64_t out_row = t.matrix_row + part_row / t.row_run * t.row_run_stride + part_row % t.row_run;
    const int64_t out_col = col / t.col_run * t.col_run_stride + col % t.col_run;
    float values[kWidth];
    read(row, col, values);
    write<kWidth>(t, out_row * t.columns + out_col, values);
  }
}

template <int kWidth, typename Read>
cudaError_t launch_place(const PackTarget& target, const Read& read, cudaStream_t stream) {
  const int64_t count = target.num_rows * (target.num_cols / kWidth);
  if (count == 0) return cudaSuccess;
  const auto ctas = static_cast<unsigned>(std::min<int64_t>((count + kThreads - 1) / kThreads, kMaxCtas));
  place_kernel<kWidth><<<ctas, kThreads, 0, stream>>>(target, read);
  return cudaGetLastError();
}

// Whether rows split into whole groups of kWide that stay together and aligned in device memory.
bool is_wide(const PackTarget& t) {
  const bool runs_are_wide =
      t.col_run >= t.num_cols || (t.col_run % kWide == 0 && t.col_run_stride % kWide == 0);
  return t.num_cols % kWide == 0 && t.columns % kWide == 0 && runs_are_wide;
}

template <typename Wide, typename Narrow>
cudaError_t launch_pack_of(const PackTarget& target, const PackSource& source, cudaStream_t stream) {
  return is_wide(target)
             ? launch_place<kWide>(target, Wide{source, target.first_row, target.num_cols}, stream)
             : launch_place<1>(target, Narrow{source, target.first_row, target.num_cols}, stream);
}

void check_target(const Arguments& arguments, const PackTarget& t) {
  arguments.pointer("out", t.out)
      .range("num_rows", t.num_rows, 0, INT64_MAX)
      .range("num_cols", t.num_cols, 0, INT64_MAX)
      .range("first_row", t.first_row, 0, INT64_MAX)
      .range("columns", t.columns, 0, INT64_MAX)
      .range("matrix_row", t.matrix_row, 0, INT64_MAX)
      .range("row_run", t.row_run, 1, INT64_MAX)
      .range("col_run", t.col_run, 1, INT64_MAX);
  if (!is_mx(t.format)) return;
  arguments.multiple("columns", t.columns, ops::cuda::kCellColumns)
      .multiple("num_cols", t.num_cols, kScaleGroup);
  if (t.col_run < t.num_cols)
    arguments.multiple("col_run", t.col_run, kScaleGroup)
        .multiple("col_run_stride", t.col_run_stride, kScaleGroup);
}

void check_source(const Arguments& arguments, const PackTarget& target, const auto& random) {
  arguments.range("first_row", random.first_row, 0, INT64_MAX)
      .range("first_col", random.first_col, 0, INT64_MAX)
      .range("whole_cols", random.whole_cols, random.first_col + target.num_cols, INT64_MAX);
}

}  // namespace

cudaError_t launch_pack(const PackTarget& target, const PackSource& source, cudaStream_t stream) {
  const Arguments arguments("launch_pack");
  check_target(arguments, target);
  arguments.pointer("values", source.values);
  if (is_mx(source.format))
    arguments.pointer("scales", source.scales, 1)
        .multiple("num_cols", target.num_cols, kScaleGroup)
        .pointer("faults", source.faults.first, alignof(unsigned long long));
  if (is_mx(target.format)) {
    arguments.require("format", source.format == target.format, "must be the cells' own");
    return launch_pack_cells(target, source, stream);
  }
  switch (source.format) {
    case MatrixFormat::kF32:
      return launch_pack_of<Reader<float, kWide>, Reader<float, 1>>(target, source, stream);
    case MatrixFormat::kBF16:
      return launch_pack_of<Reader<BFloat16, kWide>, Reader<BFloat16, 1>>(target, source, stream);
    case MatrixFormat::kMxfp8:
      return launch_pack_of<CodeReader<MatrixFormat::kMxfp8, kWide>, CodeReader<MatrixFormat::kMxfp8, 1>>(
          target, source, stream);
    case MatrixFormat::kMxfp4:
      return launch_pack_of<CodeReader<MatrixFormat::kMxfp4, kWide>, CodeReader<MatrixFormat::kMxfp4, 1>>(
          target, source, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_fill_random(const PackTarget& target, const RandomSource& source, cudaStream_t stream) {
  const Arguments arguments("launch_fill_random");
  check_target(arguments, target);
  check_source(arguments, target, source);
  arguments.require("format", !is_mx(target.format), "must not be cells");
  const float step = source.spread.step();
  return is_wide(target) ? launch_place<kWide>(target, RandomReader<kWide>{source, step}, stream)
                         : launch_place<1>(target, RandomReader<1>{source, step}, stream);
}

cudaError_t launch_fill_random_cells(const PackTarget& target, const RandomCells& source,
                                     cudaStream_t stream) {
  const Arguments arguments("launch_fill_random_cells");
  check_target(arguments, target);
  check_source(arguments, target, source);
  arguments.require("format", is_mx(target.format), "must be cells")
      .multiple("first_col", source.first_col, kScaleGroup)
      .multiple("whole_cols", source.whole_cols, kScaleGroup);
  return launch_random_cells(target, source, stream);
}

}  // namespace sparrow
