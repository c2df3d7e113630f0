// SPDX-License-Identifier: Apache-2.0
// AMX tiles in the one configuration all kernels use: eight tiles of 16 rows x 64 bytes. Included only by
// *_amx.cc.
//
// The product is C[i][j] += sum_k A[i][k] * B[k][j] with A = 16 rows x 32 bf16 as they lie in memory
// (weights, keys: no packing) and B = 16 pairs of k x 16 columns: row p holds (k = 2p, k = 2p + 1) of each
// column side by side. Columns are independent: a column's sum has one order whatever the other columns hold.
// The unit flushes subnormals.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "msa/common/transpose.h"

namespace msa::amx {

// Puts this thread's tile unit in use and takes it out again. Tile registers 0-3 are accumulators by custom,
// 4-5 hold A, 6-7 hold B.
inline void configure_tiles() {
  struct alignas(64) Config {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  static_assert(sizeof(Config) == 64);
  const Config config;
  // Not the intrinsic: g++ 12's names only the first eight bytes as read, so the rest may be dropped as dead
  // stores.
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void release_tiles() {
  asm volatile("tilerelease");
}

class TileScope {
 public:
  TileScope() { configure_tiles(); }
  ~TileScope() { release_tiles(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// Tile instructions that the compiler knows to touch memory. g++ 12's _tile_loadd does not tell it, so that
// vector stores into a tile's memory may sink below the load.
template <int kTile>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// tile C += tile A x tile B.
template <int kC, int kA, int kB>
inline void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

// Transposes 16 rows of 16 32-bit elements (16 rows of 32 bf16 become one B tile; 16 x 16 floats become their
// transpose). Rows at and past `rows` read as zero. Strides are in bytes.
void transpose_16x16(const void* from, int64_t from_stride, int rows, void* to, int64_t to_stride);

}  // namespace msa::amx
