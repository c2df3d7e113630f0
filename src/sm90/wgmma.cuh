// SPDX-License-Identifier: Apache-2.0
// wgmma with fp32 sums: d[64 x N] (+)= a[64 x 16] b[16 x N] by one warpgroup, asynchronous. Operands are
// bf16, of one width also f16; A comes from shared memory or from registers, B from shared memory. Of e4m3,
// at the end, a product has 32 columns.
//
// Order of use: wgmma_fence() when registers (accumulators, or A fragments) were written by ordinary code;
// the products; wgmma_commit(); wgmma_wait<n>() before reading the accumulators. Accumulator layout: thread t
// of the warpgroup holds, in d[4 j + 2 h + e], row 16 (t / 32) + (t % 32) / 4 + 8 h and column 8 j + 2 (t %
// 4) + e. An A fragment in registers has the same rows: a[2 i + h] holds columns 8 i + 2 (t % 4) + {0, 1} of
// row h.
#pragma once

#include <cstdint>

#include "sm90/ptx.cuh"

namespace hopper {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// At most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of accumulators over a wait.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The same for A fragments: what writes them stays before the fence that follows.
__device__ __forceinline__ void wgmma_pin(uint32_t (&a)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// Descriptor of an operand tile in shared memory as the copy engine leaves it with the 128-byte swizzle: rows
// of 128 bytes (64 bf16), groups of 8 rows 1024 bytes apart, base aligned to 1024. K-major (rows are M or N):
// the next 16 columns are at +32 bytes. MN-major (rows are K, `transposed` below): the next 16 rows are at
// +2048 bytes, and tiles wider than 64 columns lie `wide_stride` bytes apart.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t address, uint32_t wide_stride = 0) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupStride = uint64_t{1024 >> 4} << 32;
  return kSwizzle128 | kGroupStride | (uint64_t{(wide_stride & 0x3FFFF) >> 4} << 16) |
         ((address & 0x3FFFF) >> 4);
}
__device__ __forceinline__ uint64_t wgmma_descriptor(const void* tile, uint32_t wide_stride = 0) {
  return wgmma_descriptor(smem_address(tile), wide_stride);
}

// ---- the table of products ----
//
// The accumulators as the instruction names them and as operands of the asm statement: N / 2 for a width of
// N. The operands behind them are numbered on from there, so that the first one's number is N / 2 as well.
// clang-format off
#define SPARROW_WGMMA_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SPARROW_WGMMA_NAMES_16 SPARROW_WGMMA_NAMES_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SPARROW_WGMMA_NAMES_24 SPARROW_WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define SPARROW_WGMMA_NAMES_32 SPARROW_WGMMA_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define SPARROW_WGMMA_NAMES_40 SPARROW_WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define SPARROW_WGMMA_NAMES_48 SPARROW_WGMMA_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define SPARROW_WGMMA_NAMES_56 SPARROW_WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define SPARROW_WGMMA_NAMES_64 SPARROW_WGMMA_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SPARROW_WGMMA_NAMES_72 SPARROW_WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define SPARROW_WGMMA_NAMES_80 SPARROW_WGMMA_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define SPARROW_WGMMA_NAMES_88 SPARROW_WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define SPARROW_WGMMA_NAMES_96 SPARROW_WGMMA_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"

#define SPARROW_WGMMA_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                              "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SPARROW_WGMMA_SUMS_8 SPARROW_WGMMA_SUMS(0)
#define SPARROW_WGMMA_SUMS_16 SPARROW_WGMMA_SUMS_8, SPARROW_WGMMA_SUMS(8)
#define SPARROW_WGMMA_SUMS_24 SPARROW_WGMMA_SUMS_16, SPARROW_WGMMA_SUMS(16)
#define SPARROW_WGMMA_SUMS_32 SPARROW_WGMMA_SUMS_24, SPARROW_WGMMA_SUMS(24)
#define SPARROW_WGMMA_SUMS_40 SPARROW_WGMMA_SUMS_32, SPARROW_WGMMA_SUMS(32)
#define SPARROW_WGMMA_SUMS_48 SPARROW_WGMMA_SUMS_40, SPARROW_WGMMA_SUMS(40)
#define SPARROW_WGMMA_SUMS_56 SPARROW_WGMMA_SUMS_48, SPARROW_WGMMA_SUMS(48)
#define SPARROW_WGMMA_SUMS_64 SPARROW_WGMMA_SUMS_56, SPARROW_WGMMA_SUMS(56)
#define SPARROW_WGMMA_SUMS_72 SPARROW_WGMMA_SUMS_64, SPARROW_WGMMA_SUMS(64)
#define SPARROW_WGMMA_SUMS_80 SPARROW_WGMMA_SUMS_72, SPARROW_WGMMA_SUMS(72)
#define SPARROW_WGMMA_SUMS_88 SPARROW_WGMMA_SUMS_80, SPARROW_WGMMA_SUMS(80)
#define SPARROW_WGMMA_SUMS_96 SPARROW_WGMMA_SUMS_88, SPARROW_WGMMA_SUMS(88)
// clang-format on

#define SPARROW_WGMMA(types, width, sums, a, b, more, transposed, ...)                                      \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #more                                                 \
               ", 0;\n"                                                                                     \
               " wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." types " {" SPARROW_WGMMA_NAMES_##sums \
               "}, " a ", %" #b ", p, 1, 1, " transposed ";\n}"                                             \
               : SPARROW_WGMMA_SUMS_##sums                                                                  \
               : __VA_ARGS__, "l"(b_tile), "r"(accumulate), "n"(kTransposed))

// A in shared memory: the numbers of A, B, `accumulate` and kTransposed.
#define SPARROW_WGMMA_SHARED(types, width, a, b, more, transposed) \
  SPARROW_WGMMA(types, width, a, "%" #a, b, more, "0, %" #transposed, "l"(a_tile))
// A in registers: the numbers of its four, of B, `accumulate` and kTransposed.
#define SPARROW_WGMMA_REGISTERS(types, width, a0, a1, a2, a3, b, more, transposed)                      \
  SPARROW_WGMMA(types, width, a0, "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}", b, more, "%" #transposed, \
                "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))

// accumulate 0: d is overwritten. kTransposed: B is MN-major (A in shared memory never is).

template <int kN, int kTransposed = 0>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a_tile, uint64_t b_tile, int accumulate) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 160, "the table has no product of this width");
  if constexpr (kN == 16) SPARROW_WGMMA_SHARED("bf16.bf16", 16, 8, 9, 10, 11);
  if constexpr (kN == 32) SPARROW_WGMMA_SHARED("bf16.bf16", 32, 16, 17, 18, 19);
  if constexpr (kN == 48) SPARROW_WGMMA_SHARED("bf16.bf16", 48, 24, 25, 26, 27);
  if constexpr (kN == 64) SPARROW_WGMMA_SHARED("bf16.bf16", 64, 32, 33, 34, 35);
  if constexpr (kN == 80) SPARROW_WGMMA_SHARED("bf16.bf16", 80, 40, 41, 42, 43);
  if constexpr (kN == 96) SPARROW_WGMMA_SHARED("bf16.bf16", 96, 48, 49, 50, 51);
  if constexpr (kN == 112) SPARROW_WGMMA_SHARED("bf16.bf16", 112, 56, 57, 58, 59);
  if constexpr (kN == 128) SPARROW_WGMMA_SHARED("bf16.bf16", 128, 64, 65, 66, 67);
  if constexpr (kN == 144) SPARROW_WGMMA_SHARED("bf16.bf16", 144, 72, 73, 74, 75);
  if constexpr (kN == 160) SPARROW_WGMMA_SHARED("bf16.bf16", 160, 80, 81, 82, 83);
}

template <int kN, int kTransposed = 0>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_tile,
                                      int accumulate) {
  static_assert((kN % 16 == 0 && kN >= 16 && kN <= 160) || kN == 192,
                "the table has no product of this width");
  if constexpr (kN == 16) SPARROW_WGMMA_REGISTERS("bf16.bf16", 16, 8, 9, 10, 11, 12, 13, 14);
  if constexpr (kN == 32) SPARROW_WGMMA_REGISTERS("bf16.bf16", 32, 16, 17, 18, 19, 20, 21, 22);
  if constexpr (kN == 48) SPARROW_WGMMA_REGISTERS("bf16.bf16", 48, 24, 25, 26, 27, 28, 29, 30);
  if constexpr (kN == 64) SPARROW_WGMMA_REGISTERS("bf16.bf16", 64, 32, 33, 34, 35, 36, 37, 38);
  if constexpr (kN == 80) SPARROW_WGMMA_REGISTERS("bf16.bf16", 80, 40, 41, 42, 43, 44, 45, 46);
  if constexpr (kN == 96) SPARROW_WGMMA_REGISTERS("bf16.bf16", 96, 48, 49, 50, 51, 52, 53, 54);
  if constexpr (kN == 112) SPARROW_WGMMA_REGISTERS("bf16.bf16", 112, 56, 57, 58, 59, 60, 61, 62);
  if constexpr (kN == 128) SPARROW_WGMMA_REGISTERS("bf16.bf16", 128, 64, 65, 66, 67, 68, 69, 70);
  if constexpr (kN == 144) SPARROW_WGMMA_REGISTERS("bf16.bf16", 144, 72, 73, 74, 75, 76, 77, 78);
  if constexpr (kN == 160) SPARROW_WGMMA_REGISTERS("bf16.bf16", 160, 80, 81, 82, 83, 84, 85, 86);
  if constexpr (kN == 192) SPARROW_WGMMA_REGISTERS("bf16.bf16", 192, 96, 97, 98, 99, 100, 101, 102);
}

// f16 operands.

template <int kN, int kTransposed = 0>
__device__ __forceinline__ void wgmma_f16(float (&d)[kN / 2], uint64_t a_tile, uint64_t b_tile,
                                          int accumulate) {
  static_assert(kN == 128, "the table has no product of this width");
  SPARROW_WGMMA_SHARED("f16.f16", 128, 64, 65, 66, 67);
}

template <int kN, int kTransposed = 0>
__device__ __forceinline__ void wgmma_f16(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_tile,
                                          int accumulate) {
  static_assert(kN == 128, "the table has no product of this width");
  SPARROW_WGMMA_REGISTERS("f16.f16", 128, 64, 65, 66, 67, 68, 69, 70);
}

// e4m3 operands, A in registers: a[2 i + h] holds columns 16 i + 4 (t % 4) to + 3 of row h, B is K-major, and
// the next 32 columns are at +32 bytes. The hardware keeps about 13 bits behind the point of a sum's largest
// term.
#define SPARROW_WGMMA_E4M3(width, sums, a1, a2, a3, b, more)                                                \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #more                                                 \
               ", 0;\n"                                                                                     \
               " wgmma.mma_async.sync.aligned.m64n" #width "k32.f32.e4m3.e4m3 {" SPARROW_WGMMA_NAMES_##sums \
               "}, {%" #sums ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1;\n}"                        \
               : SPARROW_WGMMA_SUMS_##sums                                                                  \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_tile), "r"(accumulate))

template <int kN>
__device__ __forceinline__ void wgmma_e4m3(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b_tile,
                                           int accumulate) {
  static_assert(kN % 16 == 0 && kN >= 16 && kN <= 160, "the table has no product of this width");
  if constexpr (kN == 16) SPARROW_WGMMA_E4M3(16, 8, 9, 10, 11, 12, 13);
  if constexpr (kN == 32) SPARROW_WGMMA_E4M3(32, 16, 17, 18, 19, 20, 21);
  if constexpr (kN == 48) SPARROW_WGMMA_E4M3(48, 24, 25, 26, 27, 28, 29);
  if constexpr (kN == 64) SPARROW_WGMMA_E4M3(64, 32, 33, 34, 35, 36, 37);
  if constexpr (kN == 80) SPARROW_WGMMA_E4M3(80, 40, 41, 42, 43, 44, 45);
  if constexpr (kN == 96) SPARROW_WGMMA_E4M3(96, 48, 49, 50, 51, 52, 53);
  if constexpr (kN == 112) SPARROW_WGMMA_E4M3(112, 56, 57, 58, 59, 60, 61);
  if constexpr (kN == 128) SPARROW_WGMMA_E4M3(128, 64, 65, 66, 67, 68, 69);
  if constexpr (kN == 144) SPARROW_WGMMA_E4M3(144, 72, 73, 74, 75, 76, 77);
  if constexpr (kN == 160) SPARROW_WGMMA_E4M3(160, 80, 81, 82, 83, 84, 85);
}

}  // namespace hopper
