// SPDX-License-Identifier: Apache-2.0
// How q, k and v lie between the product that makes them and the attention that reads them: pieces of 16
// channels, each with all rows, 32 bytes a row, swizzled as the attention's products want them in shared
// memory. A run of rows that begins at a multiple of eight is copied there as it is.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace sparrow::ops::cuda {

inline constexpr int kPieceChannels = 16, kPieceRowBytes = 32;

// Where eight channels of a row begin, in numbers; `column` is a multiple of eight.
__device__ __forceinline__ int64_t place_in_tiles(int rows, int row, int column) {
  const int piece = column / kPieceChannels, half = column / 8 % 2;
  return (int64_t{piece} * rows + row) * kPieceChannels + (half ^ (row / 4 % 2)) * 8;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)};
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace sparrow::ops::cuda
