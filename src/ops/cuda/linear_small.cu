// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/linear_small.h"

#include <climits>

#include "device/cuda/arguments.h"
#include "ops/cuda/limits.h"
#include "ops/cuda/moe/stream_launch.cuh"

namespace sparrow::ops::cuda {
namespace {

constexpr int kOutTile = 8;  // outputs that are stored together

template <StreamJob kJob>
void run(const DeviceMatrix& w, const __nv_bfloat16* x, void* out, int rows, cudaStream_t stream) {
  if (rows == 0) return;
  const Arguments arguments("linear_small");
  check_matrix(arguments, "w", w);
  if (kJob == StreamJob::kLinearF32)
    arguments.require("w", !is_mx(w.format), "must be bf16 where results are f32");
  arguments.pointer("x", x)
      .pointer("out", out)
      .range("rows", rows, 1, kLinearSmallRows)
      .range("in_features", w.cols, 1, INT_MAX)
      .multiple("in_features", w.cols, kColumnTile)
      .range("out_features", w.rows, 1, INT_MAX)
      .multiple("out_features", w.rows, kOutTile);
  launch_stream_rows<kJob>(w, x, {.out = out, .rows = rows, .columns = w.cols, .out_rows = w.rows}, stream);
}

}  // namespace

bool linear_small_fits(int out_features, int in_features) {
  return in_features % kColumnTile == 0 && out_features % kOutTile == 0;
}

void linear_small(const DeviceMatrix& w, const __nv_bfloat16* x, __nv_bfloat16* out, int rows,
                  cudaStream_t stream) {
  run<StreamJob::kLinearBf16>(w, x, out, rows, stream);
}

void linear_small(const DeviceMatrix& w, const __nv_bfloat16* x, float* out, int rows, cudaStream_t stream) {
  run<StreamJob::kLinearF32>(w, x, out, rows, stream);
}

}  // namespace sparrow::ops::cuda
