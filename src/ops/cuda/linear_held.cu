// SPDX-License-Identifier: Apache-2.0
// A thread holds eight columns of up to 8 weight rows and the same eight columns of x; a CTA one or more
// groups of threads, each of which spans all columns. So weights are loaded in whole lines, x needs no shared
// memory, and after the wait nothing is left but to multiply and to add up.
#include "ops/cuda/linear_held.h"

#include <algorithm>
#include <climits>

#include "base/math.h"
#include "device/cuda/arguments.h"
#include "device/cuda/check.h"
#include "ops/cuda/mx/linear_held.cuh"
#include "ops/cuda/rows_device.cuh"
#include "sm90/launch.cuh"
#include "sm90/memory.cuh"
#include "sm90/mma.cuh"
#include "sm90/ptx.cuh"

namespace sparrow::ops::cuda {
namespace {

struct LinearHeldParams {
  const __nv_bfloat16 *w, *x;
  __nv_bfloat16* out;
  int out_features, in_features;
  int group_threads, groups, rows_of_group;
};

constexpr int kRows = 8;       // of a thread
constexpr int kPieces = 8;     // that a warp's sums come in
constexpr int kThreads = 384;  // two CTAs, and one of the kernel after, share an SM's registers
static_assert(kRows % 2 == 0);

struct Smem {
  float sums[kRows][kThreads / 32][kPieces];
};

// Read once, and not again before all other layers' have passed.
__device__ __forceinline__ uint4 load_weights(const __nv_bfloat16* from) {
  return hopper::load_once(from, hopper::kEvictFirst);
}

// The sums of a warp's 256 columns in eight pieces. Lane 4 p + c holds chunk 4 p + c of each weight row and
// of x. As operands of a product these are, of row p of A and column p of B, the columns that the four lanes
// of p have: what is wanted stands on the product's diagonal. The rest is thrown away; no number changes its
// lane.
__device__ __forceinline__ void multiply_held(const uint4 (&w)[kRows], const Vector& columns, Smem& smem) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane / 4;
  const uint4 x = *reinterpret_cast<const uint4*>(&columns);
#pragma unroll
  for (int r = 0; r < kRows; r += 2) {
    const uint4 &w0 = w[r], &w1 = w[r + 1];
    float d[4] = {};
    hopper::mma_16x8x16(d, {w0.x, w1.x, w0.y, w1.y}, x.x, x.y);
    hopper::mma_16x8x16(d, {w0.z, w1.z, w0.w, w1.w}, x.z, x.w);
    if (lane % 4 == piece / 2) {
      smem.sums[r][warp][piece] = piece % 2 ? d[1] : d[0];
      smem.sums[r + 1][warp][piece] = piece % 2 ? d[3] : d[2];
    }
  }
}

// Adds up the pieces of a group's warps: each warp takes outputs of its own group.
__device__ __forceinline__ void store_sums(const LinearHeldParams& p, const Smem& smem, int first_row,
                                           int vector, bool rehearsal) {
  const int lane = threadIdx.x % 32, warps = p.group_threads / 32;
  const int first_warp = (threadIdx.x - vector) / 32;
#pragma unroll 1
  for (int r = vector / 32; r < p.rows_of_group; r += warps) {
    const float* const pieces = smem.sums[r][first_warp];
    float sum = 0;
#pragma unroll 1
    for (int i = lane; i < warps * kPieces; i += 32) sum += pieces[i];
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (lane == 0 && first_row + r < p.out_features && !rehearsal)
      p.out[first_row + r] = __float2bfloat16(sum);
  }
}

// Two passes over one piece of code. In the first, before the wait, x is 0 and nothing is stored: the code is
// then near when it counts. The weights must be asked for ahead of the loop: in one block of code with the
// wait, the assembler moves their loads behind it.
__global__ void __launch_bounds__(kThreads, 3)
    linear_held_kernel(const __grid_constant__ LinearHeldParams p) {
  __shared__ Smem smem;
  hopper::let_next_kernel_start();
  const int group = threadIdx.x / p.group_threads;
  const int vector = threadIdx.x - group * p.group_threads, column = vector * kVector;
  const int first_row = (blockIdx.x * p.groups + group) * p.rows_of_group;
  // Threads past the columns and rows past the matrix load what others do: it is multiplied by 0 or not
  // stored.
  const __nv_bfloat16* const columns = p.w + min(column, p.in_features - kVector);
  uint4 w[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    w[r] = load_weights(columns + int64_t{min(first_row + r, p.out_features - 1)} * p.in_features);
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    const bool rehearsal = pass == 0;
    if (!rehearsal) hopper::wait_for_previous_kernel();
    const Vector x = load_vector_if(column < p.in_features && !rehearsal, p.x + column);
    multiply_held(w, x, smem);
    __syncthreads();
    store_sums(p, smem, first_row, vector, rehearsal);
    __syncthreads();  // sums
  }
}

// ---- launches ----

constexpr int kSms = 132;  // of an H200

struct Cut {
  int group_threads, groups, rows_of_group;
};

// Outputs over all SMs.
Cut cut(int out_features, int in_features) {
  const int group_threads = ceil_div(in_features / kVector, 32) * 32, rows = ceil_div(out_features, kSms);
  const int groups = std::min(rows, kThreads / group_threads);
  return {group_threads, groups, std::min(ceil_div(rows, groups), kRows)};
}

bool bf16_fits(int out_features, int in_features) {
  if (in_features % kVector != 0 || in_features > kThreads * kVector) return false;
  const Cut c = cut(out_features, in_features);
  // CTAs that find no place at once would fetch their weights when the first ones are through.
  return ceil_div(out_features, c.groups * c.rows_of_group) <= 2 * kSms;
}

void launch_bf16(const LinearHeldArgs& args, cudaStream_t stream) {
  const Cut c = cut(args.w.rows, args.w.cols);
  const LinearHeldParams p{.w = args.w.bf16(),
                           .x = args.x,
                           .out = args.out,
                           .out_features = args.w.rows,
                           .in_features = args.w.cols,
                           .group_threads = c.group_threads,
                           .groups = c.groups,
                           .rows_of_group = c.rows_of_group};
  const int grid = ceil_div(args.w.rows, c.groups * c.rows_of_group);
  SPARROW_CUDA(
      hopper::launch_dependent(linear_held_kernel, {dim3(grid), c.groups * c.group_threads}, stream, p));
}

struct CellCut {
  int cells_of_warp = 0, warps_of_rows = 0, groups = 0, grid = 0;
};

// Few cells to a warp if that makes one CTA for each SM at most, else more; none if even that does not.
CellCut cell_cut(int out_features, int in_features) {
  for (const int cells : {4, 8}) {
    const int warps = ceil_div(in_features / kCellColumns, cells);
    if (warps > kCellsHeldWarps) continue;
    const int groups = kCellsHeldWarps / warps, grid = ceil_div(out_features / kCellRows, groups);
    if (grid <= kSms) return {cells, warps, groups, grid};
  }
  return {};
}

template <MatrixFormat kFormat>
void launch_cells(const LinearHeldArgs& args, cudaStream_t stream) {
  const CellCut c = cell_cut(args.w.rows, args.w.cols);
  const CellsHeldParams p{.w = args.w.cells(),
                          .x = args.x,
                          .out = args.out,
                          .out_features = args.w.rows,
                          .in_features = args.w.cols,
                          .warps_of_rows = c.warps_of_rows};
  SPARROW_CUDA(hopper::launch_dependent(
      c.cells_of_warp == 4 ? cells_held_kernel<kFormat, 4, 4> : cells_held_kernel<kFormat, 8, 4>,
      {dim3(c.grid), c.groups * c.warps_of_rows * 32}, stream, p));
}

}  // namespace

bool linear_held_fits(MatrixFormat format, int out_features, int in_features) {
  return is_mx(format) ? cell_cut(out_features, in_features).grid > 0 : bf16_fits(out_features, in_features);
}

void linear_held(const LinearHeldArgs& args, cudaStream_t stream) {
  const Arguments arguments("linear_held");
  check_matrix(arguments, "w", args.w);
  arguments.pointer("x", args.x).pointer("out", args.out).range("out_features", args.w.rows, 1, INT_MAX);
  if (is_mx(args.w.format))
    arguments.require("w", linear_held_fits(args.w.format, args.w.rows, args.w.cols),
                      "must fit the registers");
  else
    arguments.range("in_features", args.w.cols, kVector, kThreads * kVector)
        .multiple("in_features", args.w.cols, kVector);
  if (args.w.format == MatrixFormat::kMxfp8)
    launch_cells<MatrixFormat::kMxfp8>(args, stream);
  else if (args.w.format == MatrixFormat::kMxfp4)
    launch_cells<MatrixFormat::kMxfp4>(args, stream);
  else
    launch_bf16(args, stream);
}

}  // namespace sparrow::ops::cuda
