// SPDX-License-Identifier: Apache-2.0
// The router of an MoE layer: sigmoid of f32 logits x router^T; the top_k largest sigmoid + bias, ties to the
// lower id; weights are the picked sigmoids over their sum; ids ascending. As ops::route().
//
// The f32 matrix runs through the tensor cores as the sum of three bf16 terms, which hold its 24 bits. Rows
// do not influence each other; a row's logits may differ in the last bits between calls of few and of many
// rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/comm/peers.h"
#include "ops/gpu_workspace.h"

namespace sparrow::ops::cuda {

// Once at load. parts: [3, count] bf16, count = num_experts * hidden, both pointers aligned to 16 bytes;
// router = parts[0] + parts[1] + parts[2], exact for all but tiny numbers.
void split_router(const float* router, __nv_bfloat16* parts, int64_t count, cudaStream_t stream);

// The rows of a call that are no padding: of each group of rows those that come first.
struct RealRows {
  const int32_t* count = nullptr;  // [groups] on the device; nullptr: all rows are real
  int groups = 1;
  int first_row[kMaxPeers] = {};  // of each group
};

// Those experts whose ids are wanted: they count from `first`, and others are -1.
struct WantedExperts {
  int first = 0, count = kMaxExperts;
};

// x, router, parts and the workspace are aligned to 16 bytes, here and below.
struct RouterArgs {
  const __nv_bfloat16* x;      // [rows, hidden]
  const float* router;         // [num_experts, hidden]
  const __nv_bfloat16* parts;  // of split_router; where rows are few it is not read and may be null
  const float* bias;           // [num_experts]
  int32_t* ids;                // [rows, top_k] out
  float* weights;              // [rows, top_k] out
  void* workspace;             // router_workspace_bytes
  int rows;
  bool batch_invariant = false;  // many rows run as few do: a row's bits do not depend on their number
  RealRows real;                 // ids of padding are -1
  WantedExperts wanted{};
};
void route(const RouterShape& shape, const RouterArgs& args, cudaStream_t stream);

// The norm before the router and the router in one launch, for one row. The bits of residual_out and x are
// those of add_rms_norm(); a logit's last ones may differ from route()'s.
struct NormRouterArgs {
  const __nv_bfloat16* residual;     // [hidden]
  const __nv_bfloat16* delta;        // [hidden]
  const __nv_bfloat16* norm_weight;  // [hidden]
  float eps;
  __nv_bfloat16* residual_out;  // [hidden] residual + delta; none of the other arrays
  __nv_bfloat16* x;             // [hidden] out: its norm
  const float* router;          // the rest as above
  const float* bias;
  int32_t* ids;
  float* weights;
  void* workspace;
  RealRows real;
};
void norm_route(const RouterShape& shape, const NormRouterArgs& args, cudaStream_t stream);

}  // namespace sparrow::ops::cuda
