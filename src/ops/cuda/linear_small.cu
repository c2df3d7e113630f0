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
void run(const __nv_bfloat16* w, const __nv_bfloat16* x, void* out, int rows, int out_features,
         int in_features, cudaStream_t stream) {
  if (rows == 0) return;
  Arguments("linear_small")
      .pointer("w", w)
      .pointer("x", x)
      .pointer("out", out)
      .range("rows", rows, 1, kLinearSmallRows)
      .range("in_features", in_features, 1, INT_MAX)
      .multiple("in_features", in_features, kColumnTile)
      .range("out_features", out_features, 1, INT_MAX)
      .multiple("out_features", out_features, kOutTile);
  launch_stream_rows<kJob>(
      {.w = w, .x = x}, {.out = out, .rows = rows, .columns = in_features, .out_rows = out_features}, stream);
}

}  // namespace

bool linear_small_fits(int out_features, int in_features) {
  return in_features % kColumnTile == 0 && out_features % kOutTile == 0;
}

void linear_small(const __nv_bfloat16* w, const __nv_bfloat16* x, __nv_bfloat16* out, int rows,
                  int out_features, int in_features, cudaStream_t stream) {
  run<StreamJob::kLinearBf16>(w, x, out, rows, out_features, in_features, stream);
}

void linear_small(const __nv_bfloat16* w, const __nv_bfloat16* x, float* out, int rows, int out_features,
                  int in_features, cudaStream_t stream) {
  run<StreamJob::kLinearF32>(w, x, out, rows, out_features, in_features, stream);
}

}  // namespace sparrow::ops::cuda
