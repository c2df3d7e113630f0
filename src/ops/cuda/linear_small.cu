// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/linear_small.h"

#include "ops/cuda/moe/stream_launch.cuh"

namespace sparrow::ops::cuda {
namespace {

template <StreamJob kJob>
void run(const __nv_bfloat16* w, const __nv_bfloat16* x, void* out, int rows, int out_features,
         int in_features, cudaStream_t stream) {
  if (rows == 0) return;
  launch_stream_rows<kJob>(
      {.w = w, .x = x}, {.out = out, .rows = rows, .columns = in_features, .out_rows = out_features}, stream);
}

}  // namespace

void linear_small(const __nv_bfloat16* w, const __nv_bfloat16* x, __nv_bfloat16* out, int rows,
                  int out_features, int in_features, cudaStream_t stream) {
  run<StreamJob::kLinearBf16>(w, x, out, rows, out_features, in_features, stream);
}

void linear_small(const __nv_bfloat16* w, const __nv_bfloat16* x, float* out, int rows, int out_features,
                  int in_features, cudaStream_t stream) {
  run<StreamJob::kLinearF32>(w, x, out, rows, out_features, in_features, stream);
}

}  // namespace sparrow::ops::cuda
