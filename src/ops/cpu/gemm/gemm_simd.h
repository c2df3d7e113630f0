// SPDX-License-Identifier: Apache-2.0
// The matrix product over a unit U: a vector's elements and how two of them are multiplied and added. Units
// are in unit_f32.h (any mix of weights and activations, everything in f32) and gemm_avx512bf16.cc.
//
// Lanes run along k, so that weights and activations are used in the order in which they are stored. Each
// (output, row) has one vector of sums that takes a block of k ascending; its lanes are added up in one
// order, and the blocks' sums one after another. Which loads are shared, which rows go together and where the
// weights lie changes none of that.
//
//   stream   few rows: the weights go from memory straight into registers
//   blocked  many rows: panels of weights are expanded once for each block of k and serve all rows from L1
#pragma once

#include <type_traits>

#include "base/math.h"
#include "ops/cpu/gemm/gemm_tile.h"
#include "ops/cpu/gemm/packed_simd.h"
#include "ops/cpu/gemm/stream_tile.h"

namespace sparrow::ops::cpu {

template <typename U>
struct GemmSimd {
  using Tile = TileSimd<U>;
  using Stream = StreamTile<U>;
  using Packed = PackedSimd<U>;
  using Element = typename U::Element;
  static constexpr int64_t kChunk = Tile::kChunk, kLanes = Tile::kLanes;
  static constexpr int kVectors = U::kVectors, kOutputs = U::kOutputs, kRows = U::kRows;
  // Panels are 16 KiB together: they and the rows of a tile fit the L1 cache.
  static constexpr int64_t kBlock = Packed::kBlock;
  static constexpr int64_t kPanels = 8 / kOutputs;
  // Rows whose block stays in the L2 cache while the panels of a strip pass.
  static constexpr int64_t kCachedRows = 128;

  static int64_t min(int64_t a, int64_t b) { return Packed::min(a, b); }

  static int64_t workspace_bytes(int64_t) {
    return kPanels * kOutputs * kBlock * static_cast<int64_t>(sizeof(Element));
  }

  // The outputs from `first` on, as far as they fill tiles of kO; returns how far. A tile takes outputs that
  // lie far apart and the next tile their neighbours, so that memory is read in kO long runs. Parts that fit
  // a block together are taken from it one after the other.
  template <MatrixFormat kFormat, int kO>
  static int64_t stream(const StripJob& job, int64_t first) {
    const int64_t columns = job.part_columns(), apart = (job.outputs - first) / kO;
    const int group = Packed::parts_of_block(columns);
    typename Stream::template Block<kFormat, kO> block;
    const int64_t packed_part = job.packed_part / static_cast<int64_t>(sizeof(Element));
    float sums[U::template kStreamRows<kFormat>][kO];
    for (int64_t i = 0; i < apart; ++i) {
      const Ahead ahead = Ahead::at(job.weight, job.weight.row(job.first_output + first), job.next, i, apart);
      for (int part = 0; part < job.parts; part += group)
        for (int64_t k = 0; k < columns; k += kBlock) {
          auto w =
              StoredWeights<U, kFormat>::at(job.weight, job.first_output + first + i, part * columns + k);
          w.stride *= apart, w.scale_stride *= apart;
          const int64_t count = min(kBlock, columns - k);
          const int64_t parts = min(group, job.parts - part);
          block.read(w, parts * count, ahead.scales);
          Packed::for_each_tile(job, part, columns, 0, job.rows, k, [&](int64_t row, auto x, auto n) {
            if constexpr (kO == kOutputs || n() == 1)
              for (int64_t p = 0; p < parts; ++p) {
                Stream::template tile<kFormat, kO, n()>(w.from(p * count), block, p * count, ahead.codes, x,
                                                        count, sums[row], kO, k == 0);
                if (k + count < columns) break;
                float* c = job.c + (part + p) * job.c_part + row * job.c_stride + first + i;
                for (int r = 0; r < n(); ++r, c += job.c_stride) {
                  x[r] += packed_part;
                  for (int64_t o = 0; o < kO; ++o) c[o * apart] = sums[row + r][o];
                }
              }
          });
        }
    }
    return first + apart * kO;
  }

  // Outputs from `first` on for rows [row, end), of parts [part, last): several only where they fit a block
  // together, so that the rows of a panel are read to the end of it.
  template <MatrixFormat kFormat>
  static void blocked(const StripJob& job, int part, int last, int64_t first, int64_t row, int64_t end) {
    const int64_t columns = job.part_columns();
    Element* panels = static_cast<Element*>(job.workspace);
    for (int64_t k = 0; k < columns; k += kBlock) {
      const int64_t count = min(kBlock, columns - k), chunks = ceil_div(count, kChunk);
      for (int64_t o = first; o < job.outputs; o += kPanels * kOutputs) {
        const int64_t outputs = min(kPanels * kOutputs, job.outputs - o);
        const int64_t ahead = o + 2 * kPanels * kOutputs <= job.outputs ? kPanels * kOutputs : 0;
        for (int p = part; p < last; ++p) {
          for (int64_t i = 0; i < outputs; i += kOutputs)
            Tile::expand(StoredWeights<U, kFormat>::at(job.weight, job.first_output + o + i, p * columns + k),
                         outputs - i, count, ahead, panels + i * kBlock);
          float* c = job.c + p * job.c_part + o;
          Packed::for_each_tile(
              job, p, columns, row, end, k, [&](int64_t r, const Element* const* x, auto n) {
                for (int64_t i = 0; i < outputs; i += kOutputs)
                  Tile::template panel_tile<n()>(panels + i * kBlock, x, chunks, c + r * job.c_stride + i,
                                                 job.c_stride, k == 0);
              });
        }
      }
    }
  }

  template <MatrixFormat kFormat>
  static void multiply_typed(const StripJob& job) {
    int64_t done = 0;
    if (job.rows == 1) done = stream<kFormat, kStreamOutputs>(job, done);
    if (job.rows <= U::template kStreamRows<kFormat>) done = stream<kFormat, kOutputs>(job, done);
    // The last outputs, too few for a tile, take this way too: it never reads past the matrix.
    if (done == job.outputs) return;
    const int group = Packed::parts_of_block(job.part_columns());
    for (int64_t row = 0; row < job.rows; row += kCachedRows)
      for (int part = 0; part < job.parts; part += group)
        blocked<kFormat>(job, part, static_cast<int>(min(part + group, job.parts)), done, row,
                         min(row + kCachedRows, job.rows));
  }
  static constexpr int kStreamOutputs = 8;  // of one row: enough sums to hide the latency of an addition
  static void multiply(const StripJob& job) {
    switch (job.weight.format) {
      case MatrixFormat::kF32:
        if constexpr (std::is_same_v<Element, float>) multiply_typed<MatrixFormat::kF32>(job);
        return;
      case MatrixFormat::kBF16:
        return multiply_typed<MatrixFormat::kBF16>(job);
      case MatrixFormat::kMxfp8:
        return multiply_typed<MatrixFormat::kMxfp8>(job);
      case MatrixFormat::kMxfp4:
        return multiply_typed<MatrixFormat::kMxfp4>(job);
    }
  }

  static constexpr GemmEngine kTable = {Packed::packed_bytes, workspace_bytes, Packed::pack, multiply};
};

}  // namespace sparrow::ops::cpu
