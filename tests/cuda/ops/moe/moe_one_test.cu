// SPDX-License-Identifier: Apache-2.0
// The experts' one launch on cells, against float64 sums of what they stand for; a row's bits alone, in
// company and in two launches.
#include <gtest/gtest.h>

#include <vector>

#include "cuda/ops/moe/moe_layer.cuh"
#include "cuda/ops/mx_matrix.h"

namespace sparrow::ops::cuda {
namespace {

// A layer whose bf16 weights are what its cells stand for.
struct CellLayer : Layer {
  MatrixFormat format;
  Device<uint8_t> gate_up_cells, down_cells;

  CellLayer(const MoeShape& s, int rows, MatrixFormat f)
      : Layer(s, rows),
        format(f),
        gate_up_cells(size_t(cell_matrix_bytes(f, int64_t{s.num_experts + 1} * 2 * s.inter, s.hidden))),
        down_cells(size_t(cell_matrix_bytes(f, int64_t{s.num_experts + 1} * s.hidden, s.inter))) {
    place(gate_up_cells, gate_up, s.hidden, 1, 12 / std::sqrt(float(s.hidden)));
    place(down_cells, down, s.inter, 2, 1 / std::sqrt(float(s.inter)));
  }
  void place(Device<uint8_t>& cells, Device<__nv_bfloat16>& expanded, int columns, uint64_t seed,
             float spread) {
    const MxMatrix m = random_mx_matrix(format, int64_t(expanded.count) / columns, columns, seed, spread);
    cells.upload(m.cells);
    SPARROW_CUDA(cudaMemcpy(expanded.data, m.expanded.data(), expanded.count * 2, cudaMemcpyHostToDevice));
  }
  MoeArgs cell_args(int rows) {
    MoeArgs a = args(rows);
    a.gate_up.format = a.down.format = format;
    a.gate_up.values = gate_up_cells.data, a.down.values = down_cells.data;
    return a;
  }
  // Wide rows are for 1 and 2 of them.
  int max_one_launch_rows() {
    int rows = 2;
    while (rows < 8 && moe_one_launch_fits(shape, cell_args(rows + 1))) ++rows;
    return rows;
  }
  std::vector<__nv_bfloat16> one_launch(int rows) {
    out.poison();
    poison_workspace();
    moe_one_launch(shape, cell_args(rows), nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return out.download();
  }
};

class MoeOneTest : public testing::TestWithParam<MatrixFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, MoeOneTest, testing::Values(MatrixFormat::kMxfp8, MatrixFormat::kMxfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

constexpr MoeShape kShapes[] = {
    kTiny, kOdd, {320, 64, 7, 3}, {1024, 512, 6, 4}, {6144, 128, 4, 2}, {1152, 832, 3, 2}};

TEST_P(MoeOneTest, AgreesWithTheReference) {
  for (const MoeShape& shape : kShapes) {
    CellLayer layer(shape, 8, GetParam());
    for (int rows = 1; rows <= layer.max_one_launch_rows(); ++rows)
      EXPECT_LT(layer.error(rows, layer.one_launch(rows)), kFewTolerance)
          << "hidden " << shape.hidden << ", inter " << shape.inter << ", " << rows << " rows";
  }
}

TEST_P(MoeOneTest, ARowHasTheSameBitsAloneAndInCompany) {
  for (const MoeShape& shape : kShapes)
    for (const Routing routing : {Routing::kRandom, Routing::kOneExpert}) {
      CellLayer layer(shape, 8, GetParam());
      layer.set_inputs(5, routing);
      const int most = layer.max_one_launch_rows();
      const auto want = layer.one_launch(most);
      for (int rows = 1; rows < most; ++rows)
        EXPECT_TRUE(same_bits(want, layer.one_launch(rows), size_t(rows) * shape.hidden))
            << "hidden " << shape.hidden << ", inter " << shape.inter << ", " << rows << " rows";
    }
}

// Up to the channels that two launches do not cut.
TEST_P(MoeOneTest, HasTheBitsOfTwoLaunches) {
  for (const MoeShape& shape : kShapes) {
    if (shape.inter > 512) continue;
    CellLayer layer(shape, 8, GetParam());
    for (int rows = 1; rows <= layer.max_one_launch_rows(); ++rows) {
      const auto want = layer.one_launch(rows);
      layer.out.poison();
      layer.poison_workspace();
      moe_few(shape, layer.cell_args(rows), nullptr, kMoeGateUp);
      moe_few(shape, layer.cell_args(rows), nullptr, kMoeDown);
      EXPECT_TRUE(same_bits(want, layer.out.download(), size_t(rows) * shape.hidden))
          << "hidden " << shape.hidden << ", inter " << shape.inter << ", " << rows << " rows";
    }
  }
}

TEST_P(MoeOneTest, PairsThatAreNotThereHitNoExpert) {
  CellLayer layer(kOdd, 8, GetParam());
  std::vector<int32_t> ids = layer.ids.download();
  for (size_t i = 0; i < ids.size(); ++i)
    if (i % 3 == 1 || i / kOdd.top_k == 4) ids[i] = -1;
  layer.ids.upload(ids);
  for (const int rows : {1, 2, 5, 8})
    EXPECT_LT(layer.error(rows, layer.one_launch(rows)), kFewTolerance) << rows << " rows";
}

}  // namespace
}  // namespace sparrow::ops::cuda
