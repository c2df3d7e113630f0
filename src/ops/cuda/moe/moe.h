// SPDX-License-Identifier: Apache-2.0
// The experts of a layer on the device: routed experts and the shared one, or a dense MLP. Few rows stream
// the weights of the experts that were hit; many rows are sorted by expert and multiplied in tiles. Nothing
// is read back: grids depend on the shape and on `rows` alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/device_matrix.h"
#include "ops/cuda/mx/fold.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

// The weights hold num_experts + 1 experts, the shared one (or the dense MLP) last. Rows of gate_up are
// interleaved by eights: row 16 g + i is gate channel 8 g + i and row 16 g + 8 + i is up channel 8 g + i (i <
// 8). Rows and weights are aligned to 16 bytes.
struct MoeArgs {
  const __nv_bfloat16* x = nullptr;  // [rows, hidden]
  E4m3Rows rounded;                  // of x, or nullptr. If there, the first product reads this: gate_up is
                                     // folded rows of MXFP8, and hidden a multiple of kE4m3Columns
  const int32_t* ids = nullptr;      // [rows, top_k], ascending in a row; < 0: not there
  const float* weights = nullptr;    // [rows, top_k]
  // [rows, hidden] of a shared expert that has been run apart; nullptr: it is the last of the weights. If
  // there, they hold one expert less, and few rows run as many do.
  const __nv_bfloat16* shared = nullptr;
  DeviceMatrix gate_up;  // [(num_experts + 1) * 2 * inter, hidden]
  DeviceMatrix down;     // [(num_experts + 1) * hidden, inter]
  float alpha = 0, limit = 0,
        beta = 0;                // swiglu: (clamp(up) + beta) * g * sigmoid(alpha * g), g = min(gate, limit)
  float scaling = 1;             // of the routed experts' sum
  __nv_bfloat16* out = nullptr;  // [rows, hidden], elsewhere than x
  void* workspace = nullptr;     // moe_workspace_bytes, 256-byte aligned; zeros before its first use
  int rows = 0;
  bool batch_invariant = false;  // few rows run as many do: a row's bits do not depend on their number
  bool shared_gpu = false;  // others run on it at the same time: no CTA waits for one that has not started
};

// out = scaling * sum over the picked experts of weight * expert(x) + shared(x), summed in f32 by ascending
// expert id, the shared expert last. A row's bits do not change from run to run. Few rows wait for each other
// across the device: not to be run in two streams of a device at once.
void moe(const MoeShape& shape, const MoeArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
