// SPDX-License-Identifier: Apache-2.0
// Which kernels serve a step.
#include "msa/sm90/index/index.h"

#include <algorithm>

#include "msa/sm90/index/index_params.h"
#include "sm90/tensor_map.h"

namespace msa::sm90 {
namespace {

bool valid(const IndexLaunch& l) {
  const IndexShape& s = l.shape;
  return s.num_requests <= kMaxIndexRequests && s.heads > 0 && s.max_queries > 0 && s.max_blocks > 0 &&
         s.num_sms > 0 && l.selection.top_k >= 1 && l.selection.top_k <= kMaxTopK &&
         l.selection.local_blocks >= 0 && l.selection.init_blocks >= 0;
}

IndexBatch batch_of(const IndexLaunch& l) {
  const IndexShape& s = l.shape;
  return {l.cu_seqlens_q, l.seq_lens,   l.block_table, s.num_requests,
          s.max_queries,  s.max_blocks, s.heads,       s.total_queries * s.heads};
}

// The schedule's arrays from `base` on.
IndexSchedule place_schedule(const IndexShape& shape, void* base) {
  const IndexScheduleLayout at = index_schedule_layout(shape);
  const auto place = [&](size_t offset) -> void* { return static_cast<char*>(base) + offset; };
  return {.request_tile = static_cast<int32_t*>(place(at.request_tile)),
          .tiles = static_cast<IndexTile*>(place(at.tiles)),
          .prefix = static_cast<int32_t*>(place(at.prefix)),
          .pieces = static_cast<IndexPiece*>(place(at.pieces)),
          .cta_pieces = static_cast<int2*>(place(at.cta_pieces)),
          .tile_ctas = static_cast<int2*>(place(at.tile_ctas)),
          .tile_rows = at.tile_rows,
          .tile_cap = at.tile_cap,
          .windows = at.windows,
          .window_blocks = at.window_blocks,
          .ctas = at.ctas};
}

IndexSelection selection_of(const Selection& s) {
  return {s.top_k, s.local_blocks, s.init_blocks};
}

IndexListParams list_params(const IndexLaunch& l) {
  const IndexShareLayout at = index_share_layout(l.shape);
  const auto place = [&](size_t offset) {
    return reinterpret_cast<int32_t*>(static_cast<char*>(l.share_list) + offset);
  };
  return {batch_of(l),     l.share,          l.has_all_pages ? 1 : l.share.count,
          place(at.pages), place(at.blocks), place(at.counts)};
}

IndexShareList share_of(const IndexLaunch& l) {
  const IndexListParams p = list_params(l);
  return {p.pages, p.blocks, p.counts};
}

bool one_query_each(const IndexLaunch& l) {
  return l.shape.max_queries == 1 && l.cu_seqlens_q == nullptr;
}

// Scores of all blocks, unless every request sees all of its blocks.
cudaError_t run_scores(const IndexLaunch& l, IndexScores* out, cudaStream_t stream) {
  const int unit_keys = 64 / hopper::element_bytes(l.key_type);
  float* scores = static_cast<float*>(l.workspace);
  uint32_t* counter = static_cast<uint32_t*>(l.schedule);
  const bool scans = l.shape.max_blocks > l.selection.top_k;
  *out = {scores, kBlock / unit_keys, scans ? counter : nullptr};
  if (!scans) return cudaSuccess;
  // Lines of 128 bytes, so that a unit of keys is one box of 64 contiguous lines.
  const hopper::MatrixView view{.data = l.k_pages,
                                .element = l.key_type,
                                .rows = l.num_pages * kBlock * hopper::element_bytes(l.key_type),
                                .columns = 128 / hopper::element_bytes(l.key_type),
                                .box_rows = 64,
                                .box_columns = 128 / hopper::element_bytes(l.key_type)};
  CUtensorMap keys;
  if (const cudaError_t error = hopper::make_tensor_map(view, &keys); error != cudaSuccess) return error;
  const bool without_own = one_query_each(l) && l.selection.local_blocks >= 1;
  IndexScanParams p{
      batch_of(l), l.selection.top_k, without_own, static_cast<const uint16_t*>(l.q), counter, scores, {}};
  if (l.share.count == 1) return launch_index_scan(p, l.key_type, keys, l.shape.num_sms, stream);
  p.share = share_of(l);
  p.batch.block_table = p.share.pages;
  return launch_share_scan(p, l.key_type, keys, l.shape.num_sms, stream);
}

cudaError_t run_scan(const IndexLaunch& l, cudaStream_t stream) {
  IndexScores s;
  if (const cudaError_t error = run_scores(l, &s, stream); error != cudaSuccess) return error;
  IndexSelectParams p{batch_of(l), selection_of(l.selection), s.scores, s.counter,
                      l.selected,  s.units_per_block,         {},       nullptr};
  if (l.share.count == 1) return launch_index_select(p, stream);
  p.share = share_of(l);
  p.candidates = l.candidates;
  return launch_share_select(p, stream);
}

cudaError_t run_tile(const IndexLaunch& l, cudaStream_t stream) {
  const bool whole = l.share.count == 1;
  IndexBatch batch = batch_of(l);
  const IndexShareList share = whole ? IndexShareList{} : share_of(l);
  if (!whole) batch.block_table = share.pages;
  const hopper::MatrixView q_view{
      .data = l.q, .rows = batch.total_rows, .columns = kHeadDim, .box_rows = 128, .box_columns = 64};
  const hopper::MatrixView key_view{.data = l.k_pages,
                                    .element = l.key_type,
                                    .rows = l.num_pages * kBlock,
                                    .columns = kHeadDim,
                                    .box_rows = kBlock,
                                    .box_columns = 128 / hopper::element_bytes(l.key_type)};
  CUtensorMap q, keys;
  cudaError_t error = hopper::make_tensor_map(q_view, &q);
  if (error == cudaSuccess) error = hopper::make_tensor_map(key_view, &keys);
  if (error != cudaSuccess) return error;
  const IndexSelection selection = selection_of(l.selection);
  const IndexSchedule schedule = place_schedule(l.shape, l.schedule);
  const bool dense = keeps_scores(l.shape);
  uint64_t* lists = dense ? nullptr : static_cast<uint64_t*>(l.workspace);
  float* scores = dense ? static_cast<float*>(l.workspace) : nullptr;
  const IndexTileParams tile{batch, selection, schedule, lists, scores, share};
  error = whole ? launch_index_tile(tile, l.key_type, q, keys, stream)
                : launch_share_tile(tile, l.key_type, q, keys, stream);
  if (error != cudaSuccess) return error;
  const IndexSelectParams select{batch, selection, scores, nullptr, l.selected, 1, share, l.candidates};
  const IndexMergeParams merge{batch, selection, schedule, lists, scores, l.selected, l.candidates};
  if (!whole) return dense ? launch_share_select(select, stream) : launch_share_merge(merge, stream);
  return dense && l.shape.max_blocks > kDenseBlocks ? launch_index_select(select, stream)
                                                    : launch_index_merge(merge, stream);
}

}  // namespace

cudaError_t prepare_index(const IndexLaunch& launch, cudaStream_t stream) {
  if (launch.shape.is_empty()) return cudaSuccess;
  if (!valid(launch)) return cudaErrorInvalidValue;
  if (launch.share.count > 1)
    if (const cudaError_t error = launch_share_list(list_params(launch), stream); error != cudaSuccess)
      return error;
  if (uses_scan(launch.shape))
    return cudaMemsetAsync(launch.schedule, 0, index_schedule_bytes(launch.shape), stream);
  const IndexSchedule schedule = place_schedule(launch.shape, launch.schedule);
  return launch.share.count > 1 ? launch_share_schedule(batch_of(launch), schedule, share_of(launch), stream)
                                : launch_index_schedule(batch_of(launch), schedule, stream);
}

cudaError_t launch_index(const IndexLaunch& launch, cudaStream_t stream) {
  if (launch.shape.is_empty()) return cudaSuccess;
  if (!valid(launch) || launch.share.count != 1) return cudaErrorInvalidValue;
  return uses_scan(launch.shape) ? run_scan(launch, stream) : run_tile(launch, stream);
}

bool can_score(const IndexLaunch& launch) {
  return uses_scan(launch.shape) && one_query_each(launch);
}

cudaError_t launch_scores(const IndexLaunch& launch, IndexScores* scores, cudaStream_t stream) {
  if (!can_score(launch) || !valid(launch) || launch.share.count != 1) return cudaErrorInvalidValue;
  return run_scores(launch, scores, stream);
}

cudaError_t launch_candidates(const IndexLaunch& launch, cudaStream_t stream) {
  if (launch.shape.is_empty()) return cudaSuccess;
  if (!valid(launch) || launch.share.count < 2) return cudaErrorInvalidValue;
  return uses_scan(launch.shape) ? run_scan(launch, stream) : run_tile(launch, stream);
}

cudaError_t launch_gather(const IndexGather& g, cudaStream_t stream) {
  const IndexShape& s = g.shape;
  if (s.is_empty()) return cudaSuccess;
  if (g.num_shares < 1 || g.num_shares > kMaxIndexShares || g.first_head + s.heads > g.index_heads)
    return cudaErrorInvalidValue;
  return launch_share_gather({.batch = {g.cu_seqlens_q, g.seq_lens, nullptr, s.num_requests, s.max_queries,
                                        s.max_blocks, s.heads, s.total_queries * s.heads},
                              .selection = selection_of(g.selection),
                              .candidates = g.candidates,
                              .share_stride = g.share_stride,
                              .num_shares = g.num_shares,
                              .index_heads = g.index_heads,
                              .first_head = g.first_head,
                              .selected = g.selected},
                             stream);
}

}  // namespace msa::sm90
