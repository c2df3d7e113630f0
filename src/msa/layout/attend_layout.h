// SPDX-License-Identifier: Apache-2.0
// What host and device of Hopper's sparse attention must agree on: work items, and where the
// parts of the workspace lie. Host arithmetic only: no CUDA.
#pragma once

#include <cstdint>

namespace msa::sm90 {

inline constexpr int kUnionRows = 192;  // (query, head) rows of a tile that walks its union

// A block of a union. Bit 16 w + i of the mask: query i of warpgroup w chose it.
struct alignas(16) UnionBlock {
  int32_t first_key;  // position in the sequence
  int32_t kv_row;     // of its K among all rows of 128 channels of the pages
  uint32_t mask[2];
};

struct alignas(16) QueryTile {
  int32_t first_row, rows;
  int32_t seq_len, first_position;  // of the request; of the first row within it
};

// A unit that walks its union.
struct alignas(16) UnionTile {
  QueryTile tile;
  int32_t unit;
  int32_t blocks;  // in the union; -1: no more tiles
  int32_t head, unused;
};

// One block and some of the queries that chose it.
struct alignas(16) PrefillItem {
  int32_t page;           // physical
  int32_t first;          // into the window's entries
  int32_t count_visible;  // queries | keys of the block that are written << 16
  int32_t limit_offset;   // a query row's last visible key within the block is row + limit_offset
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

// Of the kernel for few queries: no shape needs any today.
inline int64_t attend_decode_workspace_bytes(int /*max_rows*/, int /*kv_heads*/) {
  return 0;
}

}  // namespace msa::sm90
