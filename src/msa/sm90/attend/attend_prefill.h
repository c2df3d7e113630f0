// SPDX-License-Identifier: Apache-2.0
// Sparse attention for many queries, in two ways that meet in one launch sequence. A tile of neighbouring
// queries of one request whose selections overlap walks the union of them once (attend_union.cuh): nothing
// but the output is written. For the other tiles the selection is inverted (block -> queries that chose it),
// a CTA loads K and V of a block once and runs the gathered queries over it, and the partial results of a
// query are merged (attend_prefill.cuh, combine.cuh). The device chooses for each tile from the selection.
//
// A query's result depends on that query alone in each of the two ways, to the bit; which way it goes depends
// on the selections of its tile, that is of its neighbours in the same request and launch, and the two ways
// round differently.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "msa/layout/attend_layout.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

// Blocks that a tile's warpgroups walk, as a multiple of what they would if their queries chose alike, up to
// which the union is the faster way: see docs/msa-attend-prefill.md.
inline constexpr float kUnionLimit = 1.5f;

struct AttendPrefillParams {
  const __nv_bfloat16* q = nullptr;      // [total_queries, kv_heads * group, 128]
  const void* kv_pages = nullptr;        // [num_pages, kv_heads, 2 (K, V), 128, 128], 16-byte aligned
  const float* kv_scales = nullptr;      // [kv_heads, 2 (K, V)] on the device; nullptr: all 1
  const int32_t* selected = nullptr;     // [total_queries, kv_heads, top_k] ascending logical blocks, -1 tail
  const int32_t* block_table = nullptr;  // [num_requests, max_blocks]
  const int32_t* seq_lens = nullptr;     // [num_requests] keys, those of this step included
  const int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1]
  __nv_bfloat16* out = nullptr;           // [total_queries, kv_heads * group, 128]; zeros for unused rows
  void* workspace = nullptr;              // attend_prefill_workspace_bytes(), 256-byte aligned
  int total_queries = 0;                  // rows of q; those past cu_seqlens_q[num_requests] are padding
  int num_requests = 0;
  int num_pages = 0;
  int kv_heads = 1;
  int group = 16;  // query heads per KV head: 4, 8 or 16
  int top_k = 16;
  int max_blocks = 0;
  hopper::Element kv_type = hopper::Element::kBF16;
  float scale = 0.08838834764831845f;  // of the softmax
  float union_limit = kUnionLimit;     // 0: no tile walks its union; infinity: all do
};

cudaError_t launch_attend_prefill(const AttendPrefillParams& params, cudaStream_t stream);

}  // namespace msa::sm90
