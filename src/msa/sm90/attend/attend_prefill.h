// SPDX-License-Identifier: Apache-2.0
// Sparse attention for many queries, block by block: the selection is inverted (block -> queries that chose
// it), a CTA loads K and V of a block once and runs the gathered queries over it as dense tiles, and the
// partial results of a query, at most top_k of them, are merged by their maxima and sums. Three launches:
// invert, attend, combine. A query's result depends on that query alone: which tile it shares with whom
// changes no bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

namespace msa::sm90 {

struct AttendPrefillParams {
  const __nv_bfloat16* q = nullptr;         // [total_queries, kv_heads * group, 128]
  const __nv_bfloat16* kv_pages = nullptr;  // [num_pages, kv_heads, 2 (K, V), 128, 128]
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
  float scale = 0.08838834764831845f;
};

// Where the parts of the workspace lie, in bytes from its start.
struct AttendPrefillWorkspace {
  int window = 0;         // queries whose selections are inverted together
  int num_windows = 0;    // per KV head
  int64_t num_items = 0;  // int32 [windows, kv_heads] work items made
  int64_t next_item = 0;  // int32 [windows, kv_heads] work items taken
  int64_t items = 0;      // PrefillItem [windows, kv_heads, window * top_k]
  int64_t entries = 0;    // int32 [windows, kv_heads, window * top_k] query rows and slots, by block
  int64_t counts = 0;     // int32 [total_queries, kv_heads] partials of each query
  int64_t sums = 0;       // float2 [total_queries, kv_heads, top_k, group] maximum (log2) and sum of each row
  int64_t partial = 0;    // bf16 [total_queries, kv_heads, top_k, group * 128], permuted: see combine.cuh
  int64_t bytes = 0;
};

AttendPrefillWorkspace attend_prefill_workspace(int total_queries, int kv_heads, int group, int top_k,
                                                int max_blocks);
int64_t attend_prefill_workspace_bytes(int total_queries, int kv_heads, int group, int top_k, int max_blocks);

cudaError_t launch_attend_prefill(const AttendPrefillParams& params, cudaStream_t stream);

}  // namespace msa::sm90
