// SPDX-License-Identifier: Apache-2.0
#include "msa/layout/dense_layout.h"

#include <algorithm>

namespace msa::sm90 {
namespace dense {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

TileWorkspace tile_workspace(int total_queries, int num_requests, int max_blocks, int kv_heads, int group) {
  TileWorkspace ws;
  ws.max_tiles = int64_t{total_queries} / (kTileRows / group) + num_requests + 1;
  const int64_t parts = (max_blocks + kMinPartBlocks - 1) / kMinPartBlocks;
  if (parts > 1) ws.max_partials = std::min<int64_t>(kMaxPartials, ws.max_tiles * kv_heads * parts);
  ws.tile_start = align_up(sizeof(TileHeader));
  ws.tile_request = align_up(ws.tile_start + (num_requests + 2) * int64_t{4});
  ws.tile_blocks = align_up(ws.tile_request + ws.max_tiles * 4);
  ws.items = align_up(ws.tile_blocks + ws.max_tiles * 4);
  const int64_t items = ws.max_tiles * kv_heads + ws.max_partials;
  ws.merges = align_up(ws.items + items * static_cast<int64_t>(sizeof(TileItem)));
  ws.sums = align_up(ws.merges + ws.max_partials * static_cast<int64_t>(sizeof(TileMerge)));
  ws.partial = ws.sums + ws.max_partials * kTileRows * 8;
  ws.bytes = ws.partial + ws.max_partials * kTileRows * kDim * 4;
  return ws;
}

StreamWorkspace stream_workspace() {
  constexpr int64_t kRows = kMaxStreamCtas * 2 * kStreamRows;
  StreamWorkspace ws;
  ws.partial = align_up(kRows * 8);
  ws.bytes = ws.partial + kRows * kDim * 4;
  return ws;
}

}  // namespace dense

int64_t dense_workspace_bytes(int total_queries, int num_requests, int max_blocks, int kv_heads, int group) {
  return std::max(dense::stream_workspace().bytes,
                  dense::tile_workspace(total_queries, num_requests, max_blocks, kv_heads, group).bytes);
}

}  // namespace msa::sm90
