// SPDX-License-Identifier: Apache-2.0
#include "msa/layout/index_layout.h"

#include "msa/layout/places.h"

namespace msa::sm90 {
namespace {

constexpr int kSmallTile = 128, kLargeTile = 256;

bool is_small(const IndexShape& s) {
  return s.max_queries * s.heads <= kSmallTile;
}

int64_t score_bytes(const IndexShape& s) {
  return int64_t{sizeof(float)} * s.total_queries * s.heads * s.max_blocks;
}

}  // namespace

bool uses_scan(const IndexShape& s) {
  return !s.one_kernel && s.max_queries * s.heads <= kMaxScanRows;
}

bool keeps_scores(const IndexShape& s) {
  return s.max_blocks <= kDenseBlocks || (is_small(s) && score_bytes(s) <= kDenseBytes);
}

IndexScheduleLayout index_schedule_layout(const IndexShape& shape) {
  IndexScheduleLayout s;
  s.tile_rows = is_small(shape) ? kSmallTile : kLargeTile;
  const int64_t rows = int64_t{shape.total_queries} * shape.heads;
  s.tile_cap = static_cast<int>(rows / s.tile_rows) + shape.num_requests;
  s.window_blocks = s.tile_rows == kSmallTile || s.tile_cap <= kFewTiles ? shape.max_blocks : kWindowBlocks;
  s.windows = (shape.max_blocks + s.window_blocks - 1) / s.window_blocks;
  s.ctas = shape.num_sms;
  const auto windows = static_cast<size_t>(s.windows), tiles = static_cast<size_t>(s.tile_cap),
             ctas = static_cast<size_t>(s.ctas);
  constexpr size_t kInt2 = 2 * sizeof(int32_t);
  Places take;
  s.request_tile = take(sizeof(int32_t) * static_cast<size_t>(shape.num_requests));
  s.tiles = take(sizeof(IndexTile) * tiles);
  s.prefix = take(sizeof(int32_t) * windows * (tiles + 1));
  s.pieces = take(sizeof(IndexPiece) * windows * (tiles + ctas));
  s.cta_pieces = take(kInt2 * windows * ctas);
  s.tile_ctas = take(kInt2 * windows * tiles);
  s.bytes = take.end();
  return s;
}

IndexShareLayout index_share_layout(const IndexShape& shape) {
  const size_t table = sizeof(int32_t) * static_cast<size_t>(shape.num_requests) * shape.max_blocks;
  IndexShareLayout s;
  Places take;
  s.pages = take(table);
  s.blocks = take(table);
  s.counts = take(sizeof(int32_t) * static_cast<size_t>(shape.num_requests));
  s.bytes = take.end();
  return s;
}

size_t index_schedule_bytes(const IndexShape& shape) {
  if (shape.is_empty()) return 0;
  return uses_scan(shape) ? kPlaceAlignment  // the counter of tickets
                          : index_schedule_layout(shape).bytes;
}

size_t index_workspace_bytes(const IndexShape& shape) {
  if (shape.is_empty()) return 0;
  if (uses_scan(shape)) return static_cast<size_t>(score_bytes(shape)) * kMaxUnitsPerBlock;
  if (keeps_scores(shape)) return static_cast<size_t>(score_bytes(shape));
  const IndexScheduleLayout s = index_schedule_layout(shape);
  return sizeof(uint64_t) * static_cast<size_t>(s.windows) * static_cast<size_t>(s.tile_cap + s.ctas) *
         static_cast<size_t>(s.tile_rows) * kListLength;
}

}  // namespace msa::sm90
