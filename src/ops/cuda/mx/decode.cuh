// SPDX-License-Identifier: Apache-2.0
// From the codes of a cell to bf16 operands, in registers: about two instructions for each code.
#pragma once

#include <cstdint>

#include "ops/cuda/mx/cell.h"
#include "sm90/memory.cuh"

namespace sparrow::ops::cuda {

// Exact, subnormal numbers included.
__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The scale in byte kByte of a word as a pair of bf16.
template <int kByte>
__device__ __forceinline__ uint32_t scale_pair(uint32_t word) {
  return __byte_perm(word, 0, 0x4040 | kByte | kByte << 8) << 7;
}

// Where a lane finds its part of a cell in shared memory, 16-byte aligned.
template <MatrixFormat kFormat>
struct CellAddress {
  uint32_t codes, scales;

  explicit __device__ __forceinline__ CellAddress(uint32_t cell)
      : codes(cell + threadIdx.x % 32 * 16),
        scales(cell + cell_code_bytes(kFormat) + threadIdx.x % 32 / 4 * 4) {}
  __device__ __forceinline__ void operator+=(int bytes) { codes += bytes, scales += bytes; }
};

// What one lane holds of a cell.
template <MatrixFormat kFormat>
struct LaneCell {
  static constexpr bool kIsMxfp8 = kFormat == MatrixFormat::kMxfp8;
  static constexpr int kChunks = kIsMxfp8 ? 2 : 1;

  uint4 codes[kChunks];
  uint32_t scales;  // of rows g and g + 8: first group, then second

  // From the cell `offset` bytes behind an address.
  __device__ __forceinline__ void load_codes(const CellAddress<kFormat>& at, int offset) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) codes[i] = hopper::load_shared(at.codes + offset + i * 512);
  }
  __device__ __forceinline__ void load(const CellAddress<kFormat>& at, int offset) {
    load_codes(at, offset);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(scales) : "r"(at.scales + offset) : "memory");
  }
  __device__ __forceinline__ void load(uint32_t cell) {
    load(CellAddress<kFormat>(cell), 0);
  }

  // Columns 16 kStep to 16 kStep + 15 of row g + 8 kHigh: two registers of an operand of 16 columns.
  template <int kStep, int kHigh>
  __device__ __forceinline__ void unscaled_row(uint32_t& first, uint32_t& second) const {
    // A word has 16 columns of MXFP8, 32 of MXFP4.
    constexpr bool kLater = (kIsMxfp8 ? kStep : kStep / 2) % 2 != 0;
    constexpr int kPart = kIsMxfp8 ? 0 : kStep % 2 * 2;
    const uint4& c = codes[kIsMxfp8 ? kStep / 2 : 0];
    const uint32_t word = kLater ? (kHigh ? c.w : c.z) : (kHigh ? c.y : c.x);
    first = cell_pair(kFormat, kPart, word), second = cell_pair(kFormat, kPart + 1, word);
  }
  template <int kStep, int kHigh>
  __device__ __forceinline__ void decode_row(uint32_t& first, uint32_t& second) const {
    const uint32_t scale = scale_pair<kStep / 2 * 2 + kHigh>(scales);
    unscaled_row<kStep, kHigh>(first, second);
    first = multiply_bf16x2(first, scale), second = multiply_bf16x2(second, scale);
  }
  // All 16 rows: the A operand of m16n8k16, and a warp's of wgmma.
  template <int kStep>
  __device__ __forceinline__ void decode(uint32_t (&a)[4]) const {
    decode_row<kStep, 0>(a[0], a[2]);
    decode_row<kStep, 1>(a[1], a[3]);
  }
  template <int kStep>
  __device__ __forceinline__ void unscaled(uint32_t (&a)[4]) const {
    unscaled_row<kStep, 0>(a[0], a[2]);
    unscaled_row<kStep, 1>(a[1], a[3]);
  }
};

}  // namespace sparrow::ops::cuda
