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

// Where the parts of the workspace lie, in bytes from its start. A unit is a tile of queries and a KV head,
// or a window of queries and a KV head.
struct AttendPrefillWorkspace {
  int tile_queries = 0;      // of a tile that walks its union
  int num_tiles = 0;         // at most; tile numbers have gaps, see query_tile.cuh
  int window = 0;            // queries whose selections are inverted together
  int num_windows = 0;       // per KV head
  int64_t lists = 0;         // TileLists
  int64_t tiles = 0;         // QueryTile [tiles, kv_heads]
  int64_t union_size = 0;    // int32 [tiles, kv_heads] blocks in the union, or a negative TileKind
  int64_t union_units = 0;   // UnionTile [tiles * kv_heads] units that walk their union
  int64_t outer_units = 0;   // int4 [tiles * kv_heads] the others: first row, rows, KV head
  int64_t union_blocks = 0;  // UnionBlock [tiles, kv_heads, tile_queries * top_k], ascending
  int64_t num_items = 0;     // int32 [windows, kv_heads] work items made
  int64_t next_item = 0;     // int32 [windows, kv_heads] work items taken
  int64_t items = 0;         // PrefillItem [windows, kv_heads, window * top_k]
  int64_t entries = 0;       // int32 [windows, kv_heads, window * top_k] query rows and slots, by block
  int64_t counts = 0;        // int32 [total_queries, kv_heads] partials of each query
  int64_t sums = 0;     // float2 [total_queries, kv_heads, top_k, group] maximum (log2) and sum of each row
  int64_t partial = 0;  // bf16 [total_queries, kv_heads, top_k, group * 128], permuted: see combine.cuh
  int64_t bytes = 0;
};

AttendPrefillWorkspace attend_prefill_workspace(int total_queries, int num_requests, int kv_heads, int group,
                                                int top_k, int max_blocks);
int64_t attend_prefill_workspace_bytes(int total_queries, int num_requests, int kv_heads, int group,
                                       int top_k, int max_blocks);

cudaError_t launch_attend_prefill(const AttendPrefillParams& params, cudaStream_t stream);

}  // namespace msa::sm90
