// SPDX-License-Identifier: Apache-2.0
// Many rows on MXFP8 and MXFP4 weights: every bit is that of the bf16 kernels on the matrix the cells stand
// for, and so is the family that serves any number of rows of a batch-invariant step.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "cuda/ops/moe/moe_layer.cuh"
#include "cuda/ops/mx_matrix.h"

namespace sparrow::ops::cuda {
namespace {

using enum MatrixFormat;

// A layer whose bf16 weights are what the cells stand for.
struct MxLayer : Layer {
  MatrixFormat gate_up_format, down_format;
  Device<uint8_t> gate_up_cells, down_cells;

  MxLayer(const MoeShape& s, int rows, MatrixFormat gate_up_as, MatrixFormat down_as)
      : Layer(s, rows),
        gate_up_format(gate_up_as),
        down_format(down_as),
        gate_up_cells(bytes(gate_up_as, gate_up.count)),
        down_cells(bytes(down_as, down.count)) {
    place(gate_up_format, gate_up, gate_up_cells, s.hidden, 1, 12 / std::sqrt(float(s.hidden)));
    place(down_format, down, down_cells, s.inter, 2, 1 / std::sqrt(float(s.inter)));
  }

  MoeArgs mx_args(int rows) {
    MoeArgs all = args(rows);
    if (is_mx(gate_up_format)) all.gate_up.format = gate_up_format, all.gate_up.values = gate_up_cells.data;
    if (is_mx(down_format)) all.down.format = down_format, all.down.values = down_cells.data;
    return all;
  }

  // All that a launch leaves behind: hidden rows and experts' rows in the workspace, and the result.
  struct Results {
    std::vector<uint8_t> workspace;
    std::vector<__nv_bfloat16> out;
  };
  Results run_many(const MoeArgs& all, unsigned parts) {
    out.poison();
    moe_many(shape, all, nullptr, parts);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return {workspace.download(), out.download()};
  }

  // Both on the same places: those of the cells' launch.
  void expect_same_bits(int rows) {
    poison_workspace();
    const Results cells = run_many(mx_args(rows), kMoeAll);
    const MoeManyLayout at(shape, rows);
    SPARROW_CUDA(cudaMemset(workspace.data + at.hidden, 0xff, at.bytes - at.hidden));
    const Results expanded = run_many(args(rows), kMoeAll & ~kMoeRoute);
    EXPECT_EQ(std::memcmp(cells.workspace.data() + at.hidden, expanded.workspace.data() + at.hidden,
                          at.bytes - at.hidden),
              0)
        << rows << " rows: hidden rows or experts' rows differ";
    EXPECT_TRUE(same_bits(cells.out, expanded.out, cells.out.size())) << rows << " rows";
  }

 private:
  static size_t bytes(MatrixFormat format, size_t count) {
    return is_mx(format)
               ? static_cast<size_t>(cell_matrix_bytes(format, kCellRows, int64_t(count) / kCellRows))
               : 0;
  }
  static void place(MatrixFormat format, Device<__nv_bfloat16>& expanded, Device<uint8_t>& cells, int columns,
                    uint64_t seed, float spread) {
    if (!is_mx(format)) return;
    const MxMatrix m = random_mx_matrix(format, int64_t(expanded.count) / columns, columns, seed, spread);
    cells.upload(m.cells);
    SPARROW_CUDA(cudaMemcpy(expanded.data, m.expanded.data(), expanded.count * 2, cudaMemcpyHostToDevice));
  }
};

using Formats = std::tuple<MatrixFormat, MatrixFormat>;  // of gate and up, and of down

class MoeManyMxTest : public testing::TestWithParam<Formats> {
 protected:
  MxLayer layer(const MoeShape& shape, int rows) {
    return {shape, rows, std::get<0>(GetParam()), std::get<1>(GetParam())};
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, MoeManyMxTest,
                         testing::Values(Formats{kMxfp8, kMxfp8}, Formats{kMxfp4, kMxfp4},
                                         Formats{kMxfp4, kBF16}, Formats{kBF16, kMxfp8}),
                         [](const auto& info) {
                           return std::string(name_of(std::get<0>(info.param))) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

// One expert, and few tiles of weights, which are cut in two: the rows are the width.
TEST_P(MoeManyMxTest, CutTilesOfAnyWidthHaveTheBitsOfBf16) {
  MxLayer l = layer(kOddMlp, 320);
  for (int rows = 1; rows <= 320; rows += rows % 16 == 0 ? 1 : 15 - rows % 16 == 0 ? 1 : 7)
    l.expect_same_bits(rows);
}

// Enough experts for whole tiles, whose widths follow from the rows.
TEST_P(MoeManyMxTest, WholeTilesOfAnyWidthHaveTheBitsOfBf16) {
  MxLayer l = layer({256, 128, 80, 8}, 2900);
  for (const int rows : {1, 7, 64, 65, 128, 160, 300, 399, 401, 500, 640, 800, 960, 1110})
    l.expect_same_bits(rows);
  l.set_inputs(5, Routing::kOneExpert);
  for (const int rows : {40, 300, 1000}) l.expect_same_bits(rows);
}

TEST_P(MoeManyMxTest, HeldTokensHaveTheBitsOfBf16) {
  MxLayer l = layer({256, 128, 80, 8}, 2900);
  for (const int rows : {1120, 1600, 1900, 2300, 2600, 2900}) l.expect_same_bits(rows);
  l.set_inputs(5, Routing::kOneExpert);
  l.expect_same_bits(2000);
}

TEST_P(MoeManyMxTest, ShapesThatLeaveTilesUnfilledHaveTheBitsOfBf16) {
  for (const MoeShape& shape : {kTiny, kOdd, kSmall}) {
    MxLayer l = layer(shape, 1000);
    for (const int rows : {1, 33, 64, 129, 1000}) {
      l.set_inputs(rows, rows % 2 == 0 ? Routing::kRandom : Routing::kFewExperts);
      l.expect_same_bits(rows);
    }
  }
}

TEST_P(MoeManyMxTest, ARankOfM3HasTheBitsOfBf16) {
  MxLayer l = layer({6144, 384, 4, 4}, 700);
  for (const int rows : {1, 40, 130, 500, 700}) l.expect_same_bits(rows);
}

TEST_P(MoeManyMxTest, BatchInvariantRowsHaveTheSameBitsInAnyNumber) {
  MxLayer l = layer(kOdd, 900);
  const auto run = [&](int rows) {
    MoeArgs all = l.mx_args(rows);
    all.batch_invariant = true;
    l.out.poison();
    l.poison_workspace();
    moe(l.shape, all, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return l.out.download();
  };
  const auto many = run(900);
  for (const int rows : {1, 2, 17, 64, 65, 129, 600})
    EXPECT_TRUE(same_bits(many, run(rows), size_t(rows) * l.shape.hidden)) << rows << " of 900 rows";
}

}  // namespace
}  // namespace sparrow::ops::cuda
