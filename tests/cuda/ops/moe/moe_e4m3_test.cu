// SPDX-License-Identifier: Apache-2.0
// Folded rows of MXFP8 times e4m3 tokens: what is rounded is the tokens, and that as the model of the
// arithmetic says.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/dtype.h"
#include "cuda/ops/moe/moe_layer.cuh"
#include "ops/cuda/mx/cell.h"
#include "ops/cuda/mx/fold.h"
#include "ops/cuda/mx/quantise_rows.h"

namespace sparrow::ops::cuda {
namespace {

constexpr MatrixFormat kMxfp8 = MatrixFormat::kMxfp8;

// Numbers that e4m3 has, so that no token changes: one of each row is 448 times its power of two.
std::vector<__nv_bfloat16> e4m3_rows(int rows, int columns, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<__nv_bfloat16> x(size_t(rows) * columns);
  for (int r = 0; r < rows; ++r) {
    const int power = -int(rng() % 6) - 8, largest = int(rng() % columns);
    for (int c = 0; c < columns; ++c) {
      const auto code = uint8_t(c == largest ? 0x7e : rng() % 0x7f);
      x[size_t(r) * columns + c] =
          __float2bfloat16(std::ldexp((rng() % 2 ? 1 : -1) * e4m3_to_float(code), power));
    }
  }
  return x;
}

// A layer whose matrices have one scale a row, as cells and as the bf16 they stand for.
struct FoldedLayer : Layer {
  Device<uint8_t> gate_up_cells, down_cells, codes;
  Device<float> scales;

  FoldedLayer(const MoeShape& s, int rows)
      : Layer(s, rows), gate_up_cells(bytes(gate_up)), down_cells(bytes(down)), codes(x.count), scales(rows) {
    place(gate_up, gate_up_cells, s.hidden, 1, 4 / std::sqrt(float(s.hidden)));
    place(down, down_cells, s.inter, 2, 1 / std::sqrt(float(s.inter)));
  }
  MoeArgs folded_args(int rows, bool rounds) {
    MoeArgs all = args(rows);
    all.gate_up.format = all.down.format = kMxfp8;
    all.gate_up.values = gate_up_cells.data, all.down.values = down_cells.data;
    if (!rounds) return all;
    all.rounded = {codes.data, scales.data};
    quantise_rows({x.data, all.rounded, rows, shape.hidden}, nullptr);
    return all;
  }
  std::vector<__nv_bfloat16> run_folded(int rows, bool rounds) {
    out.poison();
    poison_workspace();
    moe(shape, folded_args(rows, rounds), nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return out.download();
  }

 private:
  static size_t bytes(const Device<__nv_bfloat16>& m) {
    return size_t(cell_matrix_bytes(kMxfp8, kCellRows, int64_t(m.count) / kCellRows));
  }
  static void place(Device<__nv_bfloat16>& expanded, Device<uint8_t>& to, int columns, uint32_t seed,
                    float spread) {
    std::mt19937 rng(seed);
    std::vector<uint8_t> cells(to.count);
    std::vector<__nv_bfloat16> values(expanded.count);
    for (size_t r = 0; r < values.size() / columns; ++r) {
      const int power = std::ilogb(spread) - 6 - int(rng() % 3);
      for (int c = 0; c < columns; ++c) {
        uint8_t* const cell =
            cells.data() + (r / kCellRows * (columns / kCellColumns) + c / kCellColumns) * cell_bytes(kMxfp8);
        const auto code = uint8_t(rng() % 0x80 % 0x7f | (rng() % 2 << 7));
        const int row = int(r % kCellRows), column = c % kCellColumns;
        const uint32_t bits = cell_bits(kMxfp8, column, code);
        for (int i = 0; i < 4; ++i) cell[cell_word_at(kMxfp8, row, column) + i] ^= uint8_t(bits >> (8 * i));
        cell[cell_scale_at(kMxfp8, row, column / 32)] = cell_scale(kMxfp8, uint8_t(127 + power));
        values[r * columns + c] = __float2bfloat16(std::ldexp(e4m3_to_float(code), power));
      }
    }
    to.upload(cells);
    expanded.upload(values);
  }
};

TEST(QuantiseRows, CodesAreTheNearestInTheOrderOfTheWeights) {
  for (const int columns : {64, 384, 1024, 6144})
    for (const int rows : {1, 9, 100}) {
      Device<__nv_bfloat16> x(size_t(rows) * columns);
      Device<uint8_t> codes(x.count);
      Device<float> scales(rows);
      fill<<<64, 256>>>(x.data, x.count, 3, 7);
      SPARROW_CUDA(cudaMemset(x.data, 0, size_t(columns) * 2));  // a row of zeros
      codes.poison(), scales.poison();
      quantise_rows({x.data, {codes.data, scales.data}, rows, columns}, nullptr);
      const auto in = x.download();
      const auto got = codes.download();
      const auto got_scales = scales.download();
      for (int r = 0; r < rows; ++r) {
        float largest = 0;
        for (int c = 0; c < columns; ++c)
          largest = std::max(largest, std::abs(__bfloat162float(in[size_t(r) * columns + c])));
        ASSERT_EQ(got_scales[r], largest / 448) << r;
        for (int c = 0; c < columns; ++c) {
          const float wanted =
              largest > 0 ? __bfloat162float(in[size_t(r) * columns + c]) * (448 / largest) : 0;
          const uint8_t code = got[size_t(r) * columns + c / 32 * 32 + e4m3_place(c % 32)];
          const float error = std::abs(e4m3_to_float(code) - wanted);
          ASSERT_LE(error, std::max(std::abs(wanted) / 16, 0x1p-10f)) << r << ", " << c;
        }
      }
    }
}

// Sums of a tensor core keep 13 bits; the rest is what any two kernels differ by.
TEST(MoeE4m3, TokensThatE4m3HasGiveTheHiddenRowsOfBf16) {
  for (const MoeShape& shape :
       {MoeShape{256, 128, 8, 4}, MoeShape{6144, 384, 4, 4}, MoeShape{1024, 192, 0, 0}}) {
    const int rows = 1000;
    FoldedLayer l(shape, rows);
    l.x.upload(e4m3_rows(rows, shape.hidden, 5));
    const MoeManyLayout at(l.shape, rows);
    const auto hidden = [&](const MoeArgs& args, unsigned parts) {
      moe_many(l.shape, args, nullptr, parts);
      SPARROW_CUDA(cudaDeviceSynchronize());
      std::vector<__nv_bfloat16> rows_of(size_t(rows) * (shape.top_k + 1) * shape.inter);
      SPARROW_CUDA(cudaMemcpy(rows_of.data(), l.workspace.data + at.hidden, rows_of.size() * 2,
                              cudaMemcpyDeviceToHost));
      return rows_of;
    };
    l.poison_workspace();
    const auto got = hidden(l.folded_args(rows, true), kMoeRoute | kMoeGateUp);
    const auto wanted = hidden(l.args(rows), kMoeGateUp);  // on the same places
    double difference = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double w = __bfloat162float(wanted[i]), d = __bfloat162float(got[i]) - w;
      difference += d * d, size += w * w;
    }
    EXPECT_GT(size, 0);
    EXPECT_LT(std::sqrt(difference / size), kManyTolerance) << shape.hidden << " columns";
  }
}

TEST(MoeE4m3, ALayerIsOffByWhatRoundingTokensCosts) {
  for (const MoeShape& shape : {MoeShape{256, 128, 8, 4}, kRank, MoeShape{1024, 704, 0, 0}}) {
    FoldedLayer l(shape, 1000);
    for (const int rows : {1, 70, 400, 999, 1000}) {
      const double error = l.error(rows, l.run_folded(rows, true));
      EXPECT_LT(error, 0.08) << rows << " rows of " << shape.hidden;
      EXPECT_GT(error, 0.005) << "nothing was rounded";
      EXPECT_LT(l.error(rows, l.run_folded(rows, false)), kManyTolerance);
    }
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
