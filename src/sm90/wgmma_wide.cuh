// SPDX-License-Identifier: Apache-2.0
// More of wgmma.cuh: products of 192 and 256 columns with A in shared memory, and tiles with the 32-byte
// swizzle.
#pragma once

#include "sm90/wgmma.cuh"

namespace hopper {

// Descriptor of a tile of 16 bf16 (32 bytes) by any number of rows: groups of 8 rows 256 bytes apart, chunk c
// (16 bytes) of row r at 32 r + 16 (c ^ r / 4 % 2), base aligned to 256. K-major: the next 16 columns are in
// the next tile. MN-major: the next 16 rows are at +512 bytes, and tiles of 16 columns lie `wide_stride`
// bytes apart.
__device__ __forceinline__ uint64_t wgmma_descriptor_narrow(const void* tile, uint32_t wide_stride = 0) {
  constexpr uint64_t kSwizzle32 = uint64_t{3} << 62;
  constexpr uint64_t kGroupStride = uint64_t{256 >> 4} << 32;
  return kSwizzle32 | kGroupStride | (uint64_t{(wide_stride & 0x3FFFF) >> 4} << 16) |
         ((smem_address(tile) & 0x3FFFF) >> 4);
}

// clang-format off
#define SPARROW_WGMMA_NAMES_104 SPARROW_WGMMA_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define SPARROW_WGMMA_NAMES_112 SPARROW_WGMMA_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define SPARROW_WGMMA_NAMES_120 SPARROW_WGMMA_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define SPARROW_WGMMA_NAMES_128 SPARROW_WGMMA_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define SPARROW_WGMMA_SUMS_104 SPARROW_WGMMA_SUMS_96, SPARROW_WGMMA_SUMS(96)
#define SPARROW_WGMMA_SUMS_112 SPARROW_WGMMA_SUMS_104, SPARROW_WGMMA_SUMS(104)
#define SPARROW_WGMMA_SUMS_120 SPARROW_WGMMA_SUMS_112, SPARROW_WGMMA_SUMS(112)
#define SPARROW_WGMMA_SUMS_128 SPARROW_WGMMA_SUMS_120, SPARROW_WGMMA_SUMS(120)
// clang-format on

// As wgmma().
template <int kN>
__device__ __forceinline__ void wgmma_wide(float (&d)[kN / 2], uint64_t a_tile, uint64_t b_tile,
                                           int accumulate) {
  static_assert(kN == 192 || kN == 256, "the table has no product of this width");
  constexpr int kTransposed = 0;
  if constexpr (kN == 192) SPARROW_WGMMA_SHARED("bf16.bf16", 192, 96, 97, 98, 99);
  if constexpr (kN == 256) SPARROW_WGMMA_SHARED("bf16.bf16", 256, 128, 129, 130, 131);
}

}  // namespace hopper
