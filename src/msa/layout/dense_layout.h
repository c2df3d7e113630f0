// SPDX-License-Identifier: Apache-2.0
// What host and device of Hopper's dense kernels must agree on: work items, how contexts are cut, where the
// parts of the workspace lie. Host arithmetic only: no CUDA.
#pragma once

#include <cstdint>

namespace msa::sm90 {
namespace dense {

inline constexpr int kBlock = 128, kDim = 128;

// ---- tiles (prefill, extends, speculative verify) ----

inline constexpr int kTileRows = 128;      // queries x heads of a group
inline constexpr int kMaxPartials = 1024;  // parts of split tiles in one launch
inline constexpr int kMinPartBlocks = 8;

// One CTA's piece of work: a run of blocks for the queries of one tile.
struct alignas(16) TileItem {
  int32_t request;
  int32_t first_query;  // row of q
  int16_t queries;      // of the tile; -1: no more items
  int16_t head;         // KV head
  int32_t first_block;
  int32_t blocks;    // 0: the rows are padding
  int32_t position;  // of the first query
  int32_t written;   // keys of the last block that are in the cache
  int32_t partial;   // where the sums go; -1: straight to the output
};

// A tile whose context was split.
struct alignas(16) TileMerge {
  int32_t first_query;
  int16_t queries, head;
  int32_t first_partial, count;
};

struct TileHeader {
  int32_t num_items, num_merges;
  int32_t next_item;  // taken so far, the first of each CTA not counted
};

// In bytes from the start of the workspace.
struct TileWorkspace {
  int64_t max_tiles = 0;  // of one KV head
  int64_t max_partials = 0;
  int64_t tile_start = 0;    // int32 [num_requests + 2] first tile of each request; then the padding rows'
  int64_t tile_request = 0;  // int32 [max_tiles]
  int64_t tile_blocks = 0;   // int32 [max_tiles] that the last query sees
  int64_t items = 0;         // TileItem [max_tiles * kv_heads + max_partials]
  int64_t merges = 0;        // TileMerge [max_partials]
  int64_t sums = 0;          // float2 [max_partials, kTileRows] maximum (log2) and sum
  int64_t partial = 0;       // float [max_partials, kTileRows, kDim], relative to the maximum
  int64_t bytes = 0;
};

TileWorkspace tile_workspace(int total_queries, int num_requests, int max_blocks, int kv_heads, int group);

// ---- streams (decode) ----

inline constexpr int kStreamRows = 16;
inline constexpr int kStageKeys = 64;       // the unit in which contexts are shared out
inline constexpr int kMaxStreamCtas = 160;  // no Hopper card has more multiprocessors

// The stages of all (request, KV head) pairs in a row are cut into one equal share for each CTA, so at most
// the first and the last pair of a CTA are shared with others: these two go to the workspace.
struct StreamWorkspace {
  int64_t sums = 0;     // float2 [ctas, 2 (first, last), kStreamRows] maximum (log2) and sum
  int64_t partial = 0;  // float [ctas, 2, kStreamRows, kDim], relative to the maximum
  int64_t bytes = 0;
};

StreamWorkspace stream_workspace();

}  // namespace dense

// Enough for every launch whose numbers are no larger than these.
int64_t dense_workspace_bytes(int total_queries, int num_requests, int max_blocks, int kv_heads, int group);

}  // namespace msa::sm90
