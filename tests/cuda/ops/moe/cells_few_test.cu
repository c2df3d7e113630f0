// SPDX-License-Identifier: Apache-2.0
// Few rows on MXFP8 and MXFP4 weights: experts, dense MLPs and linear layers against float64 sums over the
// expanded matrices, and what a row's bits depend on. (They are not those of bf16 weights: products are
// summed in another order.)
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cuda/ops/moe/moe_layer.cuh"
#include "cuda/ops/mx_matrix.h"
#include "ops/cuda/linear_small.h"
#include "ops/cuda/moe/families.h"

namespace sparrow::ops::cuda {
namespace {

constexpr MatrixFormat kBF16 = MatrixFormat::kBF16, kMxfp8 = MatrixFormat::kMxfp8,
                       kMxfp4 = MatrixFormat::kMxfp4;

struct Cells {
  MatrixFormat format;
  Device<uint8_t> values;

  // `expanded` gets the same numbers as bf16.
  Cells(MatrixFormat f, int64_t rows, int64_t columns, uint64_t seed, float spread,
        Device<__nv_bfloat16>& expanded)
      : format(f), values(size_t(cell_matrix_bytes(f, rows, columns))) {
    const MxMatrix m = random_mx_matrix(f, rows, columns, seed, spread);
    values.upload(m.cells);
    SPARROW_CUDA(cudaMemcpy(expanded.data, m.expanded.data(), m.expanded.size() * 2, cudaMemcpyHostToDevice));
  }
  void replace(DeviceMatrix& matrix) const { matrix.format = format, matrix.values = values.data; }
};

// Experts whose matrices have formats of their own.
struct CellLayer : Layer {
  std::unique_ptr<Cells> gate_up_cells, down_cells;

  CellLayer(const MoeShape& s, int rows, MatrixFormat gate_up_format, MatrixFormat down_format)
      : Layer(s, rows) {
    const int64_t experts = s.num_experts + 1;
    if (is_mx(gate_up_format))
      gate_up_cells = std::make_unique<Cells>(gate_up_format, experts * 2 * s.inter, s.hidden, 1,
                                              6 / std::sqrt(float(s.hidden)), gate_up);
    if (is_mx(down_format))
      down_cells = std::make_unique<Cells>(down_format, experts * s.hidden, s.inter, 2,
                                           1 / std::sqrt(float(s.inter)), down);
  }

  std::vector<__nv_bfloat16> run_cells(int rows) {
    out.poison();
    poison_workspace();
    MoeArgs all = args(rows);
    if (gate_up_cells) gate_up_cells->replace(all.gate_up);
    if (down_cells) down_cells->replace(all.down);
    // Not moe(), which may take another family: wide experts of more than 32 rows in bf16.
    if (shape.num_experts > 0)
      moe_few(shape, all, nullptr);
    else
      mlp_few(shape, all, nullptr);
    SPARROW_CUDA(cudaDeviceSynchronize());
    return out.download();
  }
};

struct Formats {
  MatrixFormat gate_up, down;
};

class CellsFewTest : public testing::TestWithParam<Formats> {};
INSTANTIATE_TEST_SUITE_P(Formats, CellsFewTest,
                         testing::Values(Formats{kMxfp8, kMxfp8}, Formats{kMxfp4, kMxfp4},
                                         Formats{kMxfp8, kBF16}, Formats{kBF16, kMxfp4},
                                         Formats{kBF16, kBF16}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.gate_up)) + "_" +
                                  std::string(name_of(info.param.down));
                         });

constexpr MoeShape kNarrow{320, 64, 7, 3}, kOddWidth{320, 704, 7, 3}, kWide{256, 3072, 4, 2},
    kLong{6144, 128, 5, 4}, kRagged{4288, 448, 3, 2},  // whose last slab is cut
    kMany{320, 64, 250, 4};                            // CTAs have runs of three experts

TEST_P(CellsFewTest, ExpertsAgreeWithTheReference) {
  for (const MoeShape& shape : {kNarrow, kOdd, kOddWidth, kWide, kLong, kRagged, kMany}) {
    CellLayer layer(shape, 64, GetParam().gate_up, GetParam().down);
    for (const Routing routing : {Routing::kRandom, Routing::kOneExpert}) {
      layer.set_inputs(5, routing);
      for (const int rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 64})
        EXPECT_LT(layer.error(rows, layer.run_cells(rows)), kFewTolerance)
            << "hidden " << shape.hidden << ", inter " << shape.inter << ", " << rows << " rows";
    }
  }
}

TEST_P(CellsFewTest, ARowHasTheSameBitsAloneAndInCompany) {
  for (const MoeShape& shape : {kOdd, kOddWidth, kWide, kLong, kMany}) {
    CellLayer layer(shape, 64, GetParam().gate_up, GetParam().down);
    const auto want = layer.run_cells(64);
    for (const int rows : {3, 4, 5, 8, 9, 16, 40, 64})
      EXPECT_TRUE(same_bits(want, layer.run_cells(rows), size_t(rows) * shape.hidden))
          << "hidden " << shape.hidden << ", inter " << shape.inter << ", " << rows << " rows";
  }
}

TEST_P(CellsFewTest, PairsThatAreNotThereHitNoExpert) {
  for (const MoeShape& shape : {kOdd, kLong}) {
    CellLayer layer(shape, 64, GetParam().gate_up, GetParam().down);
    std::vector<int32_t> ids = layer.ids.download();
    for (size_t i = 0; i < ids.size(); ++i)
      if (i % 3 == 1 || i / shape.top_k % 5 == 2) ids[i] = -1;
    layer.ids.upload(ids);
    for (const int rows : {3, 8, 9, 64})
      EXPECT_LT(layer.error(rows, layer.run_cells(rows)), kFewTolerance)
          << "hidden " << shape.hidden << ", " << rows << " rows";
  }
}

TEST_P(CellsFewTest, DenseMlpsAgreeWithTheReference) {
  for (const MoeShape& shape : {kOddMlp, MoeShape{320, 704, 0, 0}, MoeShape{6144, 256, 0, 0}}) {
    CellLayer layer(shape, 64, GetParam().gate_up, GetParam().down);
    for (const int rows : {1, 8, 9, 16, 17, 32, 33, 41, 64}) {
      const auto first = layer.run_cells(rows);
      EXPECT_LT(layer.error(rows, first), kFewTolerance)
          << "hidden " << shape.hidden << ", " << rows << " rows";
      EXPECT_TRUE(same_bits(first, layer.run_cells(rows), size_t(rows) * shape.hidden));
    }
  }
}

struct LinearCase {
  MatrixFormat format;
  int out, in;
};

class CellsLinearTest : public testing::TestWithParam<LinearCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, CellsLinearTest,
                         testing::Values(LinearCase{kMxfp8, 16, 64}, LinearCase{kMxfp8, 48, 192},
                                         LinearCase{kMxfp8, 1408, 6144}, LinearCase{kMxfp8, 6144, 1024},
                                         LinearCase{kMxfp4, 16, 64}, LinearCase{kMxfp4, 208, 1600},
                                         LinearCase{kMxfp4, 1280, 6144}),
                         [](const auto& info) {
                           return std::string(name_of(info.param.format)) + "_" +
                                  std::to_string(info.param.out) + "x" + std::to_string(info.param.in);
                         });

// One warp for each element: how far it is off, relative to what rounding may do.
__global__ void compare(const __nv_bfloat16* w, const __nv_bfloat16* x, const __nv_bfloat16* result,
                        float* excess, int rows, int out, int in) {
  const int64_t i = (blockIdx.x * int64_t{blockDim.x} + threadIdx.x) / 32;
  if (i >= int64_t{rows} * out) return;
  double sum = 0, size = 0;
  for (int c = threadIdx.x % 32; c < in; c += 32) {
    const double product =
        double(__bfloat162float(x[i / out * in + c])) * __bfloat162float(w[i % out * in + c]);
    sum += product, size += fabs(product);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
    size += __shfl_xor_sync(0xffffffff, size, distance);
  }
  // f32 sums of at most 6144 products, and the rounding of the result.
  if (threadIdx.x % 32 == 0)
    excess[i] = float(fabs(__bfloat162float(result[i]) - sum) / (2e-6 * size + 0x1p-8 * fabs(sum) + 1e-30));
}

TEST_P(CellsLinearTest, AgreesWithTheReference) {
  const auto [format, out, in] = GetParam();
  Device<__nv_bfloat16> w(size_t(out) * in), x(size_t{kLinearSmallRows} * in),
      result(size_t{kLinearSmallRows} * out);
  const Cells cells(format, out, in, 3, 1, w);
  fill<<<512, 256>>>(x.data, x.count, 1, 4);
  Device<float> excess(result.count);
  for (const int rows : {1, 2, 7, 8, 9, 15, 16, 17, 25, 32, 33, 49, 63, 64}) {
    result.poison();
    linear_small({format, cells.values.data, out, in}, x.data, result.data, rows, nullptr);
    compare<<<(int64_t{rows} * out + 7) / 8, 256>>>(w.data, x.data, result.data, excess.data, rows, out, in);
    const std::vector<float> host = excess.download();
    for (int64_t i = 0; i < int64_t{rows} * out; ++i) ASSERT_LE(host[i], 1) << rows << " rows, element " << i;
    const std::vector<__nv_bfloat16> all = result.download();
    for (size_t i = size_t(rows) * out; i < all.size(); ++i)
      ASSERT_EQ(__bfloat16_as_ushort(all[i]), 0xffff) << rows << " rows";
  }
}

}  // namespace
}  // namespace sparrow::ops::cuda
