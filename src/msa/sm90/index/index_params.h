// SPDX-License-Identifier: Apache-2.0
// What the index kernels receive, and the geometry that host and device must compute alike.
#pragma once

#include "msa/sm90/index/index.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {

// Metadata of a step as kernels see it.
struct IndexBatch {
  const int32_t* cu_seqlens_q;  // [num_requests + 1], or nullptr for `queries` each
  const int32_t* seq_lens;      // [num_requests]
  const int32_t* block_table;   // [num_requests, max_blocks]
  int num_requests, queries, max_blocks, heads, total_rows;  // total_rows = total_queries * heads
};

struct IndexSelection {
  int top_k, local_blocks, init_blocks;
};

// Which of a request's blocks a share of the cache has (msa::IndexShare), ascending; prepare_index() lists
// them once for each step. Kernels of a share see those blocks only: the page table of their batch is
// `pages`, and a block is a place in the list. Kernels of a whole cache do not look at this.
struct IndexShareList {
  const int32_t* pages;   // [num_requests, max_blocks] in the share's cache
  const int32_t* blocks;  // [num_requests, max_blocks] logical
  const int32_t* counts;  // [num_requests]
};

// ---- scan ----

struct IndexScanParams {
  IndexBatch batch;
  int top_k;          // requests that see no more blocks are not scanned
  bool without_own;   // the newest block of each request, which is forced, is not scanned
  const uint16_t* q;  // [total_rows, kHeadDim] bf16
  uint32_t* counter;  // [1] tickets drawn; 0 at the start, the select kernel sets it back
  float* scores;      // [total_rows, max_blocks * kUnitsPerBlock] out: largest score of each unit of keys
  IndexShareList share;
};

struct IndexSelectParams {
  IndexBatch batch;
  IndexSelection selection;
  const float*
      scores;         // [total_rows, max_blocks * units_per_block] as the scan or the tile kernel wrote them
  uint32_t* counter;  // [1] set to 0; nullptr: no scan before
  int32_t* selected;  // [total_rows, top_k] out
  int units_per_block;
  IndexShareList share;
  uint64_t* candidates;  // [total_rows, kListLength] out: the best keys of a share, instead of `selected`
};

// ---- tile ----

// The schedule buffer. tile_cap, windows and ctas are host-known. The piece of tile t on CTA c has index t +
// c in its window: one of the two moves on from each piece to the next.
struct IndexSchedule {
  int32_t* request_tile;  // [num_requests] first tile of each request
  IndexTile* tiles;       // [tile_cap]
  int32_t* prefix;        // [windows, tile_cap + 1] blocks of the window before each tile
  IndexPiece* pieces;     // [windows, tile_cap + ctas]
  int2* cta_pieces;       // [windows, ctas] first piece and number of pieces
  int2* tile_ctas;        // [windows, tile_cap] first and last CTA that works on each tile
  int tile_rows, tile_cap, windows, window_blocks, ctas;
};

struct IndexTileParams {
  IndexBatch batch;
  IndexSelection selection;
  IndexSchedule schedule;
  uint64_t*
      lists;      // [windows, tile_cap + ctas, tile_rows, kListLength] out: keys of each piece's best blocks
  float* scores;  // [total_rows, max_blocks] out, or nullptr: lists
  IndexShareList share;
};

struct IndexMergeParams {
  IndexBatch batch;
  IndexSelection selection;
  IndexSchedule schedule;
  const uint64_t* lists;
  const float* scores;
  int32_t* selected;     // [total_rows, top_k] out
  uint64_t* candidates;  // [total_rows, kListLength] out: the best keys of a share, instead of `selected`
};

// ---- shares ----

// The listing of a share's blocks.
struct IndexListParams {
  IndexBatch batch;
  IndexShare share;
  int blocks_per_page;  // physical blocks for each page of the share's cache: share.count, or 1: it has all
  int32_t *pages, *blocks, *counts;  // as IndexShareList's, out
};

// The selection from the candidates of all shares.
struct IndexGatherParams {
  IndexBatch batch;  // its heads are those that selections are wanted of
  IndexSelection selection;
  const uint64_t* candidates;  // [num_shares, total_queries, index_heads, kListLength]
  int64_t share_stride;        // from share to share
  int num_shares, index_heads, first_head;
  int32_t* selected;  // [total_rows, top_k] out
};

// ---- launches, one instantiation file each ----

cudaError_t launch_index_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys,
                              int sms, cudaStream_t stream);
cudaError_t launch_index_select(const IndexSelectParams& p, cudaStream_t stream);
cudaError_t launch_share_scan(const IndexScanParams& p, hopper::Element key_type, const CUtensorMap& keys,
                              int sms, cudaStream_t stream);
cudaError_t launch_share_select(const IndexSelectParams& p, cudaStream_t stream);
cudaError_t launch_share_list(const IndexListParams& p, cudaStream_t stream);
cudaError_t launch_share_gather(const IndexGatherParams& p, cudaStream_t stream);
cudaError_t launch_share_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                                  const IndexShareList& share, cudaStream_t stream);
cudaError_t launch_share_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                              const CUtensorMap& keys, cudaStream_t stream);
cudaError_t launch_share_merge(const IndexMergeParams& p, cudaStream_t stream);
cudaError_t launch_index_schedule(const IndexBatch& batch, const IndexSchedule& schedule,
                                  cudaStream_t stream);
cudaError_t launch_index_tile(const IndexTileParams& p, hopper::Element key_type, const CUtensorMap& q,
                              const CUtensorMap& keys, cudaStream_t stream);
cudaError_t launch_index_merge(const IndexMergeParams& p, cudaStream_t stream);

}  // namespace msa::sm90
