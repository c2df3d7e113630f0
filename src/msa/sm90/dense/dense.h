// SPDX-License-Identifier: Apache-2.0
// Dense causal attention over the paged cache, for the layers without a block selection. Two kernels behind
// one entry: requests whose queries and heads fill at most 16 rows per KV head are streamed at the memory's
// rate (decode); all others run as 128-row tiles on wgmma (prefill, extends, speculative verify). Both split
// long contexts over CTAs and merge the parts in order: repeats give the same bits, but where a context is
// cut, and with it the rounding of a row, depends on the lengths of the whole batch. Nothing is allocated,
// synchronised or read back; grids follow from the host's numbers alone.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "msa/layout/dense_layout.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

// Query i of request r stands at seq_lens[r] - queries(r) + i and sees the keys up to its own.
struct DenseParams {
  const __nv_bfloat16* q = nullptr;       // [total_queries, kv_heads * group, 128]
  const void* kv_pages = nullptr;         // [num_pages, kv_heads, 2 (K, V), 128, 128], 16-byte aligned
  const int32_t* block_table = nullptr;   // [num_requests, max_blocks] physical page of each logical block
  const int32_t* seq_lens = nullptr;      // [num_requests] keys, those of this step included; 0: padding
  const int32_t* cu_seqlens_q = nullptr;  // [num_requests + 1]; nullptr: max_queries_per_request each
  const float* kv_scales = nullptr;  // [kv_heads, 2 (K, V)] on the device: the stored numbers times this; all
                                     // 1 where nullptr
  __nv_bfloat16* out = nullptr;      // [total_queries, kv_heads * group, 128]; zeros for padding rows
  void* workspace = nullptr;         // dense_workspace_bytes(), 256-byte aligned, any contents
  int total_queries = 0;             // rows of q; those past the last request's are padding
  int num_requests = 0;
  int max_queries_per_request = 1;  // no request has more
  int max_blocks = 0;
  int num_pages = 0;
  int kv_heads = 1;  // 1, 2 or 4
  int group = 16;    // query heads per KV head: 4, 8 or 16
  hopper::Element kv_type = hopper::Element::kBF16;
  float scale = 0.08838834764831845f;  // of the softmax
  bool batch_invariant = false;        // always tiles, whose contexts stay whole
};

// The batch's description and the keys of earlier steps are read before the kernel ahead in the stream is
// over, if that one lets its successor start early: they must be older. The keys of this step need not be.
cudaError_t launch_dense(const DenseParams& params, cudaStream_t stream);

}  // namespace msa::sm90
