// SPDX-License-Identifier: Apache-2.0
// Operands of mma.sync from plain row-major tiles in shared memory, as bulk copies of whole rows leave them.
//
// A product over k does not care which k comes when, as long as both operands agree. A lane therefore takes
// 16 bytes (chunk c = lane % 4) of each half of a 128-byte line, and word i of both halves makes operand i of
// four m16n8k16 products: one 16-byte load feeds four products, and no swizzle is needed.
#pragma once

#include "sm90/memory.cuh"
#include "sm90/mma.cuh"

namespace sparrow::ops::cuda {

// 64 columns of row lane / 4: words of the lower and the upper half of the line.
struct Line {
  uint32_t lower[4], upper[4];
};

// `row` is the address of the line in this lane's row; lines are 128-byte aligned. Neighbouring rows meet on
// the same banks, so odd rows load their halves in the other order.
__device__ __forceinline__ Line load_line(uint32_t row) {
  const int lane = threadIdx.x % 32;
  const bool odd = (lane / 4) % 2 != 0;
  const uint32_t address = row + (lane % 4) * 16 + (odd ? 64 : 0);
  const uint4 first = hopper::load_shared(address), second = hopper::load_shared(address ^ 64);
  Line line;
  line.lower[0] = odd ? second.x : first.x, line.upper[0] = odd ? first.x : second.x;
  line.lower[1] = odd ? second.y : first.y, line.upper[1] = odd ? first.y : second.y;
  line.lower[2] = odd ? second.z : first.z, line.upper[2] = odd ? first.z : second.z;
  line.lower[3] = odd ? second.w : first.w, line.upper[3] = odd ? first.w : second.w;
  return line;
}

// d[16 x 8] += a b over word i's 16 of 64 columns: a is two lines (rows lane / 4 and 8 + lane / 4), b one.
__device__ __forceinline__ void multiply_words(float (&d)[4], const Line& a0, const Line& a1, const Line& b,
                                               int i) {
  const uint32_t a[4] = {a0.lower[i], a1.lower[i], a0.upper[i], a1.upper[i]};
  hopper::mma_16x8x16(d, a, b.lower[i], b.upper[i]);
}

__device__ __forceinline__ float4 add(const float4& a, const float4& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

__device__ __forceinline__ float swiglu(float gate, float up, float alpha, float limit, float beta) {
  const float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
  return (u + beta) * g / (1.0f + __expf(-alpha * g));
}

}  // namespace sparrow::ops::cuda
