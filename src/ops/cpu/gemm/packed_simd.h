// SPDX-License-Identifier: Apache-2.0
// Packed activations of the matrix product over a unit U (see gemm_simd.h):
// [16 rows][block of k][row][element], padded with zeros to whole chunks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/math.h"
#include "ops/cpu/kernels.h"

namespace sparrow::ops::cpu {

template <typename U>
struct PackedSimd {
  using Element = typename U::Element;
  static constexpr int64_t kChunk = kColumnGroup;
  // A row's block is 2 KiB.
  static constexpr int64_t kBlock = 2048 / static_cast<int64_t>(sizeof(Element));

  static int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
  // How many parts of so many columns fit a block together; 1 where not even two do.
  static int parts_of_block(int64_t columns) {
    return columns < kBlock ? static_cast<int>(kBlock / columns) : 1;
  }

  static int64_t packed_bytes(int64_t rows, int64_t columns) {
    return round_up(rows, kRowGroup) * round_up(columns, kChunk) * static_cast<int64_t>(sizeof(Element));
  }

  // One block of k of packed activations: where its rows lie.
  struct Block {
    int64_t first;         // element
    int64_t group, width;  // elements from one group of rows, and from one row, to the next

    static Block at(int64_t columns, int64_t k) {
      const int64_t padded = round_up(columns, kChunk), start = k / kBlock * kBlock;
      return {start * kRowGroup, kRowGroup * padded, min(kBlock, padded - start)};
    }
    int64_t row(int64_t r) const {
      return first + static_cast<int64_t>(static_cast<uint64_t>(r) / kRowGroup) * group +
             r % kRowGroup * width;
    }
  };

  // How many of the rows left go into the next tile: two and two rather than three and one.
  static int64_t rows_of_tile(int64_t left) {
    return left == U::kRows + 1 ? U::kRows - 1 : min(left, U::kRows);
  }

  // Calls tile(row, x, constant) for groups of rows [row, end), x their packed elements in the block at k of
  // a part; the constant's value is how many they are.
  template <typename Body>
  static void for_each_tile(const StripJob& job, int part, int64_t columns, int64_t row, int64_t end,
                            int64_t k, Body&& tile) {
    static_assert(U::kRows == 3);
    const Block block = Block::at(columns, k);
    const Element* packed = static_cast<const Element*>(job.packed_at(part));
    for (int64_t n; row < end; row += n) {
      n = rows_of_tile(end - row);
      const int64_t at = job.first_row + row;
      const Element* x[U::kRows] = {packed + block.row(at), packed + block.row(at + (n > 1)),
                                    packed + block.row(at + n - 1)};
      if (n == 3) tile(row, x, std::integral_constant<int, 3>());
      if (n == 2) tile(row, x, std::integral_constant<int, 2>());
      if (n == 1) tile(row, x, std::integral_constant<int, 1>());
    }
  }

  static void pack(const PackJob& job) {
    const int64_t padded = round_up(job.columns, kChunk);
    for (int64_t r = 0; r < job.count; ++r)
      for (int64_t k = 0, n; k < padded; k += n) {
        const int64_t column = job.first_column + k;
        n = min(kBlock - column % kBlock, padded - k);
        Element* to = static_cast<Element*>(job.packed) +
                      Block::at(job.packed_columns, column).row(job.first_row + r) + column % kBlock;
        const int64_t given = min(n, job.columns - k);
        U::convert(static_cast<const char*>(job.rows[r]) + k * static_cast<int64_t>(size_of(job.type)),
                   job.type, to, given);
        for (int64_t i = given; i < n; ++i) to[i] = Element{};
      }
  }
};

}  // namespace sparrow::ops::cpu
