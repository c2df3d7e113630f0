// SPDX-License-Identifier: Apache-2.0
#include "msa/layout/attend_layout.h"

namespace msa::sm90 {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Longer windows give each block more queries per load of K and V, shorter ones more CTAs to invert the
// selection: these were measured at 64, 256, 1024 and 8192 blocks.
int window_for(int max_blocks) {
  if (max_blocks <= 128) return 512;
  if (max_blocks <= 512) return 1024;
  return max_blocks <= 2048 ? 2048 : 4096;
}

}  // namespace

AttendPrefillWorkspace attend_prefill_workspace(int total_queries, int num_requests, int kv_heads, int group,
                                                int top_k, int max_blocks) {
  AttendPrefillWorkspace ws;
  ws.tile_queries = kUnionRows / group;
  ws.num_tiles = total_queries / ws.tile_queries + num_requests + 1;
  ws.window = window_for(max_blocks);
  ws.num_windows = (total_queries + ws.window - 1) / ws.window;
  const int64_t units = int64_t{ws.num_windows} * kv_heads, pairs = units * ws.window * top_k;
  const int64_t rows = int64_t{total_queries} * kv_heads * top_k * group;
  const int64_t tile_units = int64_t{ws.num_tiles} * kv_heads;
  ws.lists = 0;
  ws.tiles = 256;
  ws.union_size = align_up(ws.tiles + tile_units * static_cast<int64_t>(sizeof(QueryTile)));
  ws.union_units = align_up(ws.union_size + tile_units * 4);
  ws.outer_units = align_up(ws.union_units + tile_units * static_cast<int64_t>(sizeof(UnionTile)));
  ws.union_blocks = align_up(ws.outer_units + tile_units * 16);
  ws.num_items = align_up(ws.union_blocks +
                          tile_units * ws.tile_queries * top_k * static_cast<int64_t>(sizeof(UnionBlock)));
  ws.next_item = align_up(ws.num_items + units * 4);
  ws.items = align_up(ws.next_item + units * 4);
  ws.entries = align_up(ws.items + pairs * static_cast<int64_t>(sizeof(PrefillItem)));
  ws.counts = align_up(ws.entries + pairs * 4);
  ws.sums = align_up(ws.counts + int64_t{total_queries} * kv_heads * 4);
  ws.partial = align_up(ws.sums + rows * 8);
  ws.bytes = align_up(ws.partial + rows * 256);
  return ws;
}

int64_t attend_prefill_workspace_bytes(int total_queries, int num_requests, int kv_heads, int group,
                                       int top_k, int max_blocks) {
  return attend_prefill_workspace(total_queries, num_requests, kv_heads, group, top_k, max_blocks).bytes;
}

}  // namespace msa::sm90
