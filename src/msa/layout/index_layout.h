// SPDX-License-Identifier: Apache-2.0
// How the index kernels for Hopper cut a step, and where their arrays lie. Host arithmetic only: no CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace msa::sm90 {

// Host-known maxima of a step; all sizes follow from them.
struct IndexShape {
  int num_requests = 0;     // rows of the block table, <= kMaxIndexRequests
  int total_queries = 0;    // rows of q
  int max_queries = 0;      // of one request
  int max_blocks = 0;       // columns of the block table
  int heads = 0;            // index heads of this rank
  int num_sms = 0;          // multiprocessors of the device
  bool one_kernel = false;  // few queries are scored as many are, to the bit

  bool is_empty() const { return num_requests == 0 || total_queries == 0; }
};

inline constexpr int kMaxIndexRequests = 4096;

// ---- scan ----

inline constexpr int kMaxScanRows = 32;
inline constexpr int kMaxUnitsPerBlock = 4;

bool uses_scan(const IndexShape& shape);

// ---- tile ----

// Blocks are walked in windows: all CTAs work inside one window (32 MiB of bf16 keys) before the next, so
// that each key is read from device memory once and from the L2 by the other row tiles. Inside a window the
// work, ordered by row tile and then by block, is cut into one contiguous share for each CTA; a CTA's part of
// one row tile is a piece.
inline constexpr int kWindowBlocks = 1024;
inline constexpr int kFewTiles = 4;  // with so few row tiles there is little to share: one window
inline constexpr int kListLength = 16;

struct alignas(16) IndexTile {
  int32_t request;
  int32_t first_row;  // inside the request
  int32_t rows;       // valid rows, <= the tile's height
  int32_t blocks;     // blocks that its last row sees
};

// A CTA's contiguous run of blocks of one row tile.
struct alignas(16) IndexPiece {
  int32_t request, first_row, rows;  // as its tile's
  int32_t first_block, blocks;
  int32_t q_row;           // first row of q
  int32_t first_position;  // of the request's first query
  int32_t unused;
};

// Where IndexSchedule's arrays lie, in bytes from its start.
struct IndexScheduleLayout {
  size_t request_tile = 0, tiles = 0, prefix = 0, pieces = 0, cta_pieces = 0, tile_ctas = 0, bytes = 0;
  int tile_rows = 0, tile_cap = 0, windows = 0, window_blocks = 0, ctas = 0;
};
IndexScheduleLayout index_schedule_layout(const IndexShape& shape);

// All scores are kept instead of lists where a row sees few blocks, or where the scores of small tiles take
// little memory.
inline constexpr int kDenseBlocks = 128;
inline constexpr int64_t kDenseBytes = int64_t{64} << 20;

bool keeps_scores(const IndexShape& shape);

// ---- shares ----

inline constexpr int kMaxIndexShares = 8;

// Where the list of a share's blocks lies, in bytes from its start.
struct IndexShareLayout {
  size_t pages = 0, blocks = 0, counts = 0, bytes = 0;
};
IndexShareLayout index_share_layout(const IndexShape& shape);

// ---- both ----

size_t index_schedule_bytes(const IndexShape& shape);
size_t index_workspace_bytes(const IndexShape& shape);

}  // namespace msa::sm90
