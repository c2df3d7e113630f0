// SPDX-License-Identifier: Apache-2.0
#include "msa/sm90/dense/dense.h"

#include <algorithm>

#include "msa/sm90/dense/dense_plan.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace dense {
namespace {

int64_t align_up(int64_t bytes) {
  return (bytes + 255) / 256 * 256;
}

}  // namespace

cudaError_t make_kv_map(const DenseParams& p, int box_rows, bool swizzle, CUtensorMap* map) {
  const auto rows = static_cast<cuuint64_t>(p.num_pages) * p.kv_heads * 2 * kBlock;
  const auto box = static_cast<cuuint32_t>(box_rows);
  if (p.kv_type == hopper::Element::kBF16)
    return hopper::make_tensor_map(
        hopper::TensorView{p.kv_pages, p.kv_type, 3, {64, rows, 2}, {256, 128}, {64, box, 2}, swizzle}, map);
  return hopper::make_tensor_map(
      hopper::TensorView{p.kv_pages, p.kv_type, 3, {128, rows, 1}, {128, 128}, {128, box, 1}, swizzle}, map);
}

cudaError_t make_query_map(const DenseParams& p, CUtensorMap* map) {
  const cuuint64_t group = p.group, heads = p.kv_heads, queries = p.total_queries;
  const cuuint32_t box_heads = p.group, box_queries = kTileRows / p.group;
  return hopper::make_tensor_map(hopper::TensorView{p.q,
                                                    hopper::Element::kBF16,
                                                    5,
                                                    {64, group, queries, 2, heads},
                                                    {256, heads * group * 256, 128, group * 256},
                                                    {64, box_heads, box_queries, 2, 1},
                                                    true},
                                 map);
}

cudaError_t multiprocessors(int* count) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
}

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

cudaError_t launch_dense(const DenseParams& p, cudaStream_t stream) {
  if (p.total_queries == 0 || p.kv_heads == 0) return cudaSuccess;
  if (p.group != 4 && p.group != 8 && p.group != 16) return cudaErrorInvalidValue;
  if (!p.batch_invariant && p.max_queries_per_request * p.group <= dense::kStreamRows)
    return dense::launch_stream(p, dense::stream_workspace(), stream);
  return dense::launch_tiles(
      p, dense::tile_workspace(p.total_queries, p.num_requests, p.max_blocks, p.kv_heads, p.group), stream);
}

}  // namespace msa::sm90
